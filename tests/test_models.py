"""Families and checkpoints: where things are, what is refused, what a fingerprint notices."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from random_models import IMAGE_TOKEN, RANDOM_MODELS, random_llava_next
from safetensors.torch import load_file, save_file

from p2p_export.errors import InputError
from p2p_export.models import FAMILIES, family_of
from p2p_export.models.checkpoint import find_checkpoint, load_model
from p2p_export.models.llava_next import newline_rows
from p2p_export.proxies import SITES


@pytest.fixture(scope="module", params=list(RANDOM_MODELS))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / request.param
    RANDOM_MODELS[request.param](2).save_pretrained(folder)
    return folder


def test_each_family_finds_its_sites_with_the_widths_of_its_spec(saved: Path) -> None:
    checkpoint = find_checkpoint(str(saved))
    model = load_model(checkpoint)
    assert checkpoint.family is FAMILIES[saved.name]
    for layer in range(checkpoint.spec.num_hidden_layers):
        for site in SITES:
            linear = checkpoint.family.site(model, layer, site)
            assert linear.out_features == checkpoint.spec.site_size(site)


def test_visual_rows_are_those_of_the_placeholders(saved: Path) -> None:
    checkpoint = find_checkpoint(str(saved))
    ids = np.array([[1, IMAGE_TOKEN, IMAGE_TOKEN, 9, IMAGE_TOKEN]])
    mask = checkpoint.family.visual_mask(ids, checkpoint.config)
    assert mask.tolist() == [[False, True, True, False, True]]


@pytest.mark.parametrize("size", [(32, 64), (64, 64), (50, 20), (31, 90), (200, 201)])
def test_newline_rows_are_where_transformers_puts_them(size: tuple[int, int]) -> None:
    """Features of ones and a newline of zeros, packed by transformers itself."""
    model = random_llava_next(2)
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    tiles = image_size_to_num_patches(size, model.config.image_grid_pinpoints, 32)
    features, _ = model.model.pack_image_features(
        [torch.ones(tiles, 16, 4)],
        torch.tensor([size]),
        vision_feature_select_strategy="default",
        image_newline=torch.zeros(4),
    )
    expected = features[0][:, 0] == 0
    ids = np.full((1, len(expected) + 2), IMAGE_TOKEN)
    ids[0, [0, -1]] = 7
    rows = newline_rows(ids, model.config, {"image_sizes": [size]})
    assert rows[0, 1:-1].tolist() == expected.tolist()
    text = family_of(model.config).visual_mask(
        ids, model.config, {"image_sizes": [size]}, newline="text"
    )
    assert text.sum() == (~expected).sum()


def test_newline_rows_refuse_a_prompt_of_another_length() -> None:
    model = random_llava_next(2)
    ids = np.full((1, 11), IMAGE_TOKEN)
    with pytest.raises(InputError, match="the prompt holds 11 image tokens"):
        newline_rows(ids, model.config, {"image_sizes": [(32, 64)]})


class TestFingerprint:
    def test_a_copy_has_the_same(self, saved: Path, tmp_path: Path) -> None:
        copy = shutil.copytree(saved, tmp_path / "copy")
        assert find_checkpoint(str(copy)).fingerprint == find_checkpoint(str(saved)).fingerprint

    def test_one_changed_weight_changes_it(self, saved: Path, tmp_path: Path) -> None:
        copy = shutil.copytree(saved, tmp_path / "copy")
        path = copy / "model.safetensors"
        tensors = load_file(path)
        name = next(name for name in tensors if "layers.1.mlp.up_proj" in name)
        tensors[name] = tensors[name] * 1.001
        save_file(tensors, path, metadata={"format": "pt"})
        assert find_checkpoint(str(copy)).fingerprint != find_checkpoint(str(saved)).fingerprint

    def test_a_changed_config_changes_it(self, saved: Path, tmp_path: Path) -> None:
        copy = shutil.copytree(saved, tmp_path / "copy")
        config = json.loads((copy / "config.json").read_text())
        config["text_config"]["rms_norm_eps"] = 0.125
        (copy / "config.json").write_text(json.dumps(config))
        assert find_checkpoint(str(copy)).fingerprint != find_checkpoint(str(saved)).fingerprint


class TestRefusals:
    def test_a_folder_without_config(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"has no config\.json"):
            find_checkpoint(str(tmp_path))

    def test_a_path_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no model folder at"):
            find_checkpoint(str(tmp_path / "nothing"))

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "model.bin").write_bytes(b"")
        with pytest.raises(InputError, match="is a file"):
            find_checkpoint(str(tmp_path / "model.bin"))

    def test_an_architecture_we_do_not_know_names_those_we_do(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
        with pytest.raises(
            InputError, match=r"'bert'.*we know llava, llava_next, llava_onevision, qwen2_5_vl"
        ):
            find_checkpoint(str(tmp_path))

    def test_a_config_that_is_not_json(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{")
        with pytest.raises(InputError, match="is not JSON"):
            find_checkpoint(str(tmp_path))

    def test_a_folder_without_weights(self, saved: Path, tmp_path: Path) -> None:
        shutil.copy(saved / "config.json", tmp_path)
        with pytest.raises(InputError, match="has no weights we can load"):
            load_model(find_checkpoint(str(tmp_path)))

    def test_a_pickled_checkpoint_is_not_opened(self, saved: Path, tmp_path: Path) -> None:
        shutil.copy(saved / "config.json", tmp_path)
        torch.save({}, tmp_path / "pytorch_model.bin")
        with pytest.raises(InputError, match="has no weights we can load"):
            load_model(find_checkpoint(str(tmp_path)))

    def test_truncated_weights(self, saved: Path, tmp_path: Path) -> None:
        copy = shutil.copytree(saved, tmp_path / "copy")
        whole = (copy / "model.safetensors").read_bytes()
        (copy / "model.safetensors").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(InputError, match="not a whole safetensors file"):
            load_model(find_checkpoint(str(copy)))

    def test_a_missing_weight_is_named_and_never_made_up(self, saved: Path, tmp_path: Path) -> None:
        copy = shutil.copytree(saved, tmp_path / "copy")
        tensors = load_file(copy / "model.safetensors")
        name = next(name for name in tensors if "layers.1.mlp.up_proj" in name)
        del tensors[name]
        save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(InputError, match=r"lacks 1 of the weights.*layers\.1\.mlp\.up_proj"):
            load_model(find_checkpoint(str(copy)))

    def test_a_fingerprint_of_no_safetensors_file(self, saved: Path, tmp_path: Path) -> None:
        copy = shutil.copytree(saved, tmp_path / "copy")
        (copy / "model.safetensors").write_bytes(b"not weights at all")
        with pytest.raises(InputError, match="not a whole safetensors file"):
            _ = find_checkpoint(str(copy)).fingerprint
