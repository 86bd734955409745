"""A checkpoint's vision part -> `vision.onnx` beside its weight file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import torch

from p2p_export.errors import InputError
from p2p_export.graphs import vision_clip, vision_qwen2_5_vl
from p2p_export.graphs.export import DTYPES, Precision
from p2p_export.graphs.vision_tower import VisionTower
from p2p_export.graphs.weights import attach_weights, write_weights
from p2p_export.models import FAMILIES, Family
from p2p_export.models.vision import VisionInfo

BUILDERS: Mapping[str, Callable[[Any, torch.dtype], VisionTower]] = {
    "clip-projector": vision_clip.build,
    "qwen2_5_vl": vision_qwen2_5_vl.build,
}


def export_vision(
    model: Any, family: Family, folder: Path, *, precision: Precision = "fp32"
) -> VisionInfo:
    """Write `vision.onnx` and `vision.weights.safetensors`; say how the host feeds them.

    The graph equals transformers' `get_image_features`, projector or merger included; float32
    `pixel_values` go in, `image_features` come out in `precision`. Raises `InputError` for a
    family, or a tower within it, whose vision part we do not export.
    """
    if family.vision is None:
        known = ", ".join(name for name, each in FAMILIES.items() if each.vision is not None)
        raise InputError(
            f"the vision part of {family.architecture!r} cannot be exported yet (we export those "
            f"of {known}); use --only decoder and run its vision part yourself"
        )
    dtype = DTYPES[precision]
    tower = BUILDERS[family.vision](model, dtype)
    locations = write_weights(folder / tower.info.weights, tower.weights, dtype)
    graph = tower.export()
    attach_weights(graph, tower.info.weights, locations)
    onnx.save(tower.to_proto(graph), folder / tower.info.graph)
    return tower.info
