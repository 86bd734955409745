"""Weight files hold exactly what the config describes, or their headers get them refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exported_bundles import checkpoint, plan_for
from safetensors.torch import load_file, save_file

from p2p_export.errors import InputError
from p2p_export.export import export_bundle
from p2p_export.graphs.weights import write_weights
from p2p_export.models.checkpoint import find_checkpoint, load_model

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(checkpoint("qwen2_5_vl"), tmp_path / "model")


def change_config(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads((folder / "config.json").read_text())
    change(document)
    (folder / "config.json").write_text(json.dumps(document))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def shard(folder: Path, index: Any = None) -> dict[str, Any]:
    """Split the weights into two files with an index; returns the sound index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for number in (0, 1):
        part = names[number::2]
        file = f"model-{number}.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    sound = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(sound if index is None else index))
    return sound


def refused(folder: Path, match: str) -> None:
    """Before the weights load, and on the way to a bundle before anything is written."""
    with pytest.raises(InputError, match=match) as error:
        load_model(find_checkpoint(str(folder)))
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(InputError, match=match):
        export_bundle(plan_for("qwen2_5_vl"), folder / "bundle", model=str(folder))
    assert not (folder / "bundle").exists()


def shallower(config: dict[str, Any]) -> None:
    config["text_config"].update(num_hidden_layers=2, layer_types=["full_attention"] * 2)


def test_more_weights_than_the_config_uses(folder: Path) -> None:
    change_config(folder, shallower)
    with pytest.raises(InputError, match=r"config does not describe, first .*layers\.2\."):
        load_model(find_checkpoint(str(folder)))


def test_fewer_vision_layers_than_the_weights_have(folder: Path) -> None:
    change_config(folder, lambda c: c["vision_config"].update(depth=1, fullatt_block_indexes=[0]))
    refused(folder, r"config does not describe, first .*visual.*blocks\.1\.")
    change_config(folder, lambda c: c["vision_config"].update(depth=0))
    refused(folder, r"vision_config\.depth")


def test_more_layers_than_there_are_tensors(folder: Path) -> None:
    change_config(folder, lambda c: c["vision_config"].update(depth=9000))
    refused(folder, "describes 9000 layers and its weight files hold")


def test_an_extra_tensor_is_named(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.update(surprise=torch.zeros(2)))
    refused(folder, "holds 1 weights that its config does not describe, first surprise")


def test_a_table_that_is_computed_today_may_be_there(folder: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(2)}))
    load_model(find_checkpoint(str(folder)))


def test_a_tensor_of_another_shape_is_named_with_both(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(60, 48)}))
    refused(folder, r"lm_head\.weight has shape \[60, 48\] and the config describes \[61, 48\]")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(folder: Path, value: float) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        name = next(name for name in tensors if "layers.1.mlp.up_proj" in name)
        tensors[name][0, 0] = value

    change_tensors(folder, spoil)
    refused(folder, r"layers\.1\.mlp\.up_proj\.weight .*holds NaN or Inf")


def test_shards_beside_their_index_load(folder: Path) -> None:
    whole = load_model(find_checkpoint(str(folder))).state_dict()
    shard(folder)
    for name, tensor in load_model(find_checkpoint(str(folder))).state_dict().items():
        assert torch.equal(tensor, whole[name])


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "/tmp/x.safetensors",
        "a/b.safetensors",
        "x.bin",
        "",
        "..",
        "a\0.safetensors",
    ],
)
def test_a_shard_that_is_no_file_beside_its_index(folder: Path, name: str) -> None:
    sound = shard(folder)
    shutil.copy(folder / "model-0.safetensors", folder.parent / "outside.safetensors")
    moved = {t: name if f == "model-0.safetensors" else f for t, f in sound["weight_map"].items()}
    (folder / INDEX).write_text(json.dumps({**sound, "weight_map": moved}))
    refused(folder, "no file beside it")


@pytest.mark.parametrize(
    "index",
    [[], {}, {"weight_map": []}, {"metadata": {}, "weight_map": {}}, 3, "x",
     {"metadata": {}, "weight_map": {"a": 1}}, {"metadata": None, "weight_map": {"a": "b"}}],
)  # fmt: skip
def test_an_index_that_is_none(folder: Path, index: Any) -> None:
    shard(folder, index)
    refused(folder, INDEX.replace(".", r"\."))


def test_a_shard_that_is_missing_is_named(folder: Path) -> None:
    shard(folder)
    (folder / "model-1.safetensors").unlink()
    refused(folder, r"lacks its weight file model-1\.safetensors")


def test_the_fingerprint_is_of_what_is_loaded(folder: Path) -> None:
    before = find_checkpoint(str(folder)).fingerprint
    shutil.copy(folder / "model.safetensors", folder / "another.safetensors")
    assert find_checkpoint(str(folder)).fingerprint == before


def test_an_adapter_is_no_model(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    refused(folder, "merge the adapter")


def test_a_weight_that_half_precision_cannot_hold(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.ones(2), "b.weight": torch.tensor([1.0, 1e6])}
    with pytest.raises(InputError, match=r"b\.weight holds values that float16 cannot.*fp32"):
        write_weights(tmp_path / "weights", tensors, torch.float16)
    assert not list(tmp_path.iterdir())
    write_weights(tmp_path / "weights", tensors, torch.float32)
