"""A config.json that describes no model is refused at once and in one sentence."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from exported_bundles import checkpoint

from p2p_export.errors import InputError
from p2p_export.models.checkpoint import find_checkpoint, load_model

ABSURD: list[Any] = [0, -1, 1.5, 10**9, 10**30, "four", "", None, [], [1], {}, True]
PLACES = [
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps", "hidden_act",
    "rope_parameters", "max_position_embeddings", "layer_types",
]  # fmt: skip
# What leaves the model as it was: transformers fills in what the weights have.
HARMLESS: dict[str, list[Any]] = {
    "num_key_value_heads": [None],
    "head_dim": [None],
    "rms_norm_eps": [1.5, 10**9, 10**30],
    "rope_parameters": [None, {}],
    "max_position_embeddings": [10**9],
    "layer_types": [None],
}


@pytest.fixture(scope="module", params=["llava", "qwen2_5_vl"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(checkpoint(request.param), tmp_path_factory.mktemp("it") / "model")


@pytest.fixture
def config(folder: Path) -> Any:
    """The document, put back behind the test."""
    content = (folder / "config.json").read_text()
    yield json.loads(content)
    (folder / "config.json").write_text(content)


def refusal(folder: Path, document: Any) -> str | None:
    """What loading the checkpoint with this config says, or None when it loads."""
    (folder / "config.json").write_text(json.dumps(document))
    try:
        load_model(find_checkpoint(str(folder)))
    except InputError as error:
        return str(error)
    return None


@pytest.mark.parametrize("place", PLACES)
def test_absurd_values_of_the_text_part(folder: Path, config: Any, place: str) -> None:
    for value in ABSURD:
        changed = copy.deepcopy(config)
        changed["text_config"][place] = value
        said = refusal(folder, changed)
        if said is None:
            assert value in HARMLESS.get(place, []), (place, value)
            continue
        assert len(said.splitlines()) == 1
        assert len(said) < 600


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text_config", None),
        ("text_config", 3),
        ("text_config", []),
        ("vision_config", "vit"),
        ("vision_config", {"hidden_size": 0}),
        ("image_token_id", "img"),
        ("image_token_id", [3]),
        ("image_token_id", 10**30),
        ("image_token_index", -5),
        ("model_type", 3),
        ("model_type", "bert"),
        ("tie_word_embeddings", "no"),
        ("transformers_weights", "other.safetensors"),
    ],
)
def test_absurd_values_of_the_whole(folder: Path, config: Any, field: str, value: Any) -> None:
    assert refusal(folder, {**config, field: value}) is not None


@pytest.mark.parametrize("document", [None, 3, [], "llava", {}])
def test_what_is_no_config_at_all(folder: Path, config: Any, document: Any) -> None:
    assert refusal(folder, document) is not None


@pytest.mark.parametrize(
    "content", ['{"a":' * 100_000, '{"model_type": "llava", "a": 1' + "0" * 5000]
)
def test_a_config_made_to_break_its_reader(folder: Path, config: Any, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(InputError, match="not JSON"):
        find_checkpoint(str(folder))


@pytest.mark.timeout(60)
def test_a_config_without_its_text_part_builds_no_default_model(folder: Path, config: Any) -> None:
    del config["text_config"]
    said = refusal(folder, config)
    assert said is not None
    assert "config" in said


@pytest.mark.parametrize(
    "name", ["", " ", "x" * 5000, "a/" + "x" * 5000, "./" + "x" * 5000, "nul\0"]
)
def test_a_name_that_can_be_no_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError) as refused:
        find_checkpoint(name)
    assert len(str(refused.value)) < 400
