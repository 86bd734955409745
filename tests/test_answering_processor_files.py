"""A bundle's processor folder holds what the runtime reads, whatever form the checkpoint has."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from answering_bundle import picture, processor, tokenizer
from exported_bundles import checkpoint, copy_of, plan_for
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlavaConfig, Qwen2_5_VLConfig

from p2p_export.errors import InputError
from p2p_export.export import export_bundle
from p2p_export.models import family_of
from p2p_export.models.checkpoint import Checkpoint, find_checkpoint, load_processor
from p2p_export.models.processor_files import copy_processor_files


def test_files_are_copied_as_they_are(tmp_path: Path) -> None:
    processor("llava").save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    names = copy_processor_files(tmp_path / "model", tmp_path / "processor")
    assert {"tokenizer.json", "processor_config.json", "chat_template.jinja"} <= set(names)
    assert {path.name for path in (tmp_path / "processor").iterdir()} == set(names)
    for name in names:
        assert (tmp_path / "processor" / name).read_bytes() == (
            tmp_path / "model" / name
        ).read_bytes()


def test_a_tokenizer_in_another_form_is_converted(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    pieces = [*sorted(ByteLevel.alphabet()), "ab"]
    (model / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (model / "merges.txt").write_text("#version: 0.2\na b\n")
    (model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    assert "tokenizer.json" in copy_processor_files(model, tmp_path / "processor")
    read = Tokenizer.from_file(str(tmp_path / "processor" / "tokenizer.json"))
    assert read.encode("ab ba").tokens == ["ab", "Ġ", "b", "a"]


def test_a_model_without_processor_files_makes_no_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert copy_processor_files(tmp_path / "model", tmp_path / "processor") == ()
    assert not (tmp_path / "processor").exists()
    LlavaConfig().save_pretrained(tmp_path / "model")
    assert copy_processor_files(tmp_path / "model", tmp_path / "processor") == ("config.json",)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"model": 3}'),
        ("tokenizer.json", ""),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[1]"),
        ("tokenizer_config.json", '{"a":' * 100_000),
        ("processor_config.json", "null"),
        ("generation_config.json", "{"),
    ],
)
def test_a_damaged_file_is_named_before_anything_is_exported(
    tmp_path: Path, file: str, content: str
) -> None:
    model = copy_of(checkpoint("llava"), tmp_path / "model")
    (model / file).write_text(content)
    with pytest.raises(InputError, match=file.replace(".", r"\.")):
        export_bundle(plan_for("llava"), tmp_path / "bundle", model=str(model))
    with pytest.raises(InputError, match=file.replace(".", r"\.")):
        load_processor(find_checkpoint(str(model)))
    assert not (tmp_path / "bundle").exists()


def test_qwens_processor_loads_for_images_without_torchvision(tmp_path: Path) -> None:
    """transformers builds none without a video processor, which torchvision alone provides."""
    processor("qwen2_5_vl").save_pretrained(tmp_path)
    config = Qwen2_5_VLConfig()
    loaded = load_processor(Checkpoint("qwen", tmp_path, config, family_of(config)))
    inputs = loaded(text=["w1 <image>"], images=[picture(1, 40, 40)], return_tensors="np")
    rows = int(inputs["image_grid_thw"].prod()) // 4
    assert int((inputs["input_ids"] == tokenizer().convert_tokens_to_ids("<image>")).sum()) == rows
    assert inputs["pixel_values"].dtype == np.float32
