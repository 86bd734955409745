"""The exported CLIP tower with projector equals transformers' `get_image_features`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from answering_bundle import asked_bundle
from random_models import random_llava, randomized
from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration

from p2p_export.errors import InputError
from p2p_export.graphs.vision import export_vision
from p2p_export.models import family_of
from p2p_export.models.vision import image_rows, vision_inputs


def llava(**changes: Any) -> Any:
    """The random LLaVA with other settings of its vision part."""
    model = random_llava(1)
    vision = model.config.vision_config.to_dict() | changes.pop("vision", {})
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**vision), text_config=model.config.text_config, **changes
    )
    return randomized(LlavaForConditionalGeneration(config), seed=1)


def expected(model: Any, pixels: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        features = model.model.get_image_features(torch.from_numpy(pixels), return_dict=True)
    return torch.stack(list(features.pooler_output)).numpy()


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def pixels(images: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(images, 3, 32, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def exported() -> tuple[Any, Any, Path]:
    """With LLaVA-1.5's choice of layer: the last but one, class row left out."""
    bundle = asked_bundle("llava")
    return bundle.model, bundle.vision, bundle.folder


def test_graph_equals_get_image_features(exported: tuple[Any, Any, Path]) -> None:
    check_equal(*exported, rows=16)


def test_several_layers_and_the_class_row(tmp_path: Path) -> None:
    model = llava(
        vision_feature_layer=[1, -1],
        vision_feature_select_strategy="full",
        projector_hidden_act="gelu_pytorch_tanh",
        vision={"hidden_act": "gelu"},
    )
    check_equal(model, export_vision(model, family_of(model.config), tmp_path), tmp_path, rows=17)


def check_equal(model: Any, info: Any, folder: Path, *, rows: int) -> None:
    session = onnxruntime.InferenceSession(folder / info.graph)
    for images in (1, 3):
        processed = {"pixel_values": pixels(images)}
        (found,) = session.run(None, vision_inputs(info, processed))
        assert relative_error(found, expected(model, pixels(images))) < 1e-5
        assert image_rows(info, processed) == [rows] * images


def test_another_layer_gives_another_answer(exported: tuple[Any, Any, Path]) -> None:
    model, info, folder = exported
    session = onnxruntime.InferenceSession(folder / info.graph)
    (found,) = session.run(None, {"pixel_values": pixels(2)})
    model.config.vision_feature_layer = -1
    try:
        assert relative_error(found, expected(model, pixels(2))) > 1e-2
    finally:
        model.config.vision_feature_layer = -2


def test_half_precision_stays_near_and_unread_layers_stay_out(tmp_path: Path) -> None:
    model = llava(vision_feature_layer=-2)
    info = export_vision(model, family_of(model.config), tmp_path, precision="fp16")
    (found,) = onnxruntime.InferenceSession(tmp_path / info.graph).run(
        None, {"pixel_values": pixels(2)}
    )
    assert found.dtype == np.float16
    assert relative_error(found.astype(np.float32), expected(model, pixels(2))) < 2e-2
    graph = onnx.load(tmp_path / info.graph, load_external_data=False).graph
    names = {initializer.name for initializer in graph.initializer}
    assert any(name.startswith("encoder.layers.0.") for name in names)
    assert not any(name.startswith("encoder.layers.1.") for name in names)


def test_weights_are_written_once_and_never_over_others(exported: tuple[Any, Any, Path]) -> None:
    model, _, folder = exported
    assert sorted(path.name for path in folder.glob("vision*")) == [
        "vision.onnx",
        "vision.weights.safetensors",
    ]
    with pytest.raises(InputError, match=r"vision\.weights\.safetensors is there already"):
        export_vision(model, family_of(model.config), folder)


def test_what_we_cannot_export_is_refused(tmp_path: Path) -> None:
    model = llava(vision={"hidden_act": "relu"})
    with pytest.raises(InputError, match="activation 'relu' of the vision part"):
        export_vision(model, family_of(model.config), tmp_path)
    model.config.vision_config.model_type = "siglip_vision_model"
    with pytest.raises(InputError, match="'siglip_vision_model' cannot be exported"):
        export_vision(model, family_of(model.config), tmp_path)
    model.config.model_type = "llava_next"
    with pytest.raises(InputError, match=r"those of llava, qwen2_5_vl.*--only decoder"):
        export_vision(model, family_of(model.config), tmp_path)
    assert not list(tmp_path.iterdir())
