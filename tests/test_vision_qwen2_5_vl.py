"""The exported Qwen2.5-VL tower equals transformers' for any grids, windows included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from answering_bundle import asked_bundle

from p2p_export.graphs.vision import export_vision
from p2p_export.models import family_of
from p2p_export.models.vision import (
    VisionInfo,
    image_rows,
    qwen2_5_vl_indices,
    vision_inputs,
)

# frames, height, width in patches: square, wide, narrow beside square, two frames.
GRIDS = ([[1, 4, 4]], [[1, 6, 10]], [[1, 14, 6], [1, 4, 4]], [[2, 4, 6], [1, 2, 2]])


def processed(grids: list[list[int]]) -> dict[str, np.ndarray]:
    patches = sum(int(np.prod(grid)) for grid in grids)
    values = np.random.default_rng(2).normal(size=(patches, 3 * 2 * 8 * 8))
    return {"pixel_values": values.astype(np.float32), "image_grid_thw": np.array(grids)}


def expected(model: Any, inputs: dict[str, np.ndarray]) -> np.ndarray:
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with torch.no_grad():
        features = model.model.get_image_features(**tensors, return_dict=True).pooler_output
    return torch.cat(list(features)).numpy()


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.fixture(scope="module")
def windowed() -> tuple[Any, VisionInfo, Any, Path]:
    """Depth 2: the first layer windowed, 2x2 blocks a window; the second full."""
    bundle = asked_bundle("qwen2_5_vl")
    session = onnxruntime.InferenceSession(bundle.folder / bundle.vision.graph)
    return bundle.model, bundle.vision, session, bundle.folder


@pytest.mark.parametrize("grids", GRIDS, ids=str)
def test_windowed_tower_equals_get_image_features(windowed: Any, grids: list[list[int]]) -> None:
    model, info, session, _ = windowed
    inputs = processed(grids)
    (found,) = session.run(None, vision_inputs(info, inputs))
    assert relative_error(found, expected(model, inputs)) < 1e-5
    assert image_rows(info, inputs) == [int(np.prod(grid)) // 4 for grid in grids]


def test_runtime_optimisations_change_nothing(windowed: Any) -> None:
    _, info, session, folder = windowed
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(folder / info.graph, settings)
    for grids in GRIDS:
        feed = vision_inputs(info, processed(grids))
        assert relative_error(session.run(None, feed)[0], plain.run(None, feed)[0]) < 1e-5


@pytest.mark.slow
def test_half_precision_stays_near(windowed: Any, tmp_path: Path) -> None:
    model = windowed[0]
    info = export_vision(model, family_of(model.config), tmp_path, precision="fp16")
    inputs = processed(GRIDS[2])
    session = onnxruntime.InferenceSession(tmp_path / info.graph)
    (found,) = session.run(None, vision_inputs(info, inputs))
    assert found.dtype == np.float16
    assert relative_error(found.astype(np.float32), expected(model, inputs)) < 2e-2


def test_windows_matter(windowed: Any) -> None:
    model, info, session, _ = windowed
    inputs = processed([[1, 6, 10]])
    feed = vision_inputs(info, inputs)
    feed["window_rows"], feed["window_slots"] = feed["frame_rows"], feed["frame_slots"]
    (found,) = session.run(None, feed)
    assert relative_error(found, expected(model, inputs)) > 1e-3


def test_images_do_not_see_one_another(windowed: Any) -> None:
    _, info, session, _ = windowed
    both = processed([[1, 4, 6], [1, 2, 8]])
    (together,) = session.run(None, vision_inputs(info, both))
    alone = {"pixel_values": both["pixel_values"][24:], "image_grid_thw": np.array([[1, 2, 8]])}
    (second,) = session.run(None, vision_inputs(info, alone))
    assert relative_error(together[6:], second) < 1e-5


def test_graph_has_no_loop_and_no_data_dependent_shape(windowed: Any) -> None:
    _, info, _, folder = windowed
    graph = onnx.load(folder / info.graph, load_external_data=False).graph
    kinds = {node.op_type for node in graph.node}
    assert not kinds & {"Loop", "If", "Scan", "NonZero", "Unique", "SequenceAt"}


def test_windows_are_those_of_transformers() -> None:
    from transformers.vision_utils import get_vision_window_index

    grids = np.array([[1, 14, 10], [2, 6, 4]])
    index, ends = get_vision_window_index(
        torch.from_numpy(grids), spatial_merge_size=2, window_size=24, patch_size=4
    )
    patches = (index[:, None] * 4 + torch.arange(4)).flatten().split(ends.diff().tolist())
    info = VisionInfo(kind="qwen2_5_vl", inputs=(), spatial_merge_size=2, window_blocks=3)
    rows = qwen2_5_vl_indices(info, grids)["window_rows"]
    found = {tuple(sorted(row[row >= 0].tolist())) for row in rows}
    assert found == {tuple(sorted(window.tolist())) for window in patches}


def test_info_survives_the_manifest(windowed: Any) -> None:
    _, info, _, _ = windowed
    assert VisionInfo.from_dict(info.to_dict()) == info
