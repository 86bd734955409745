"""What `vision.onnx` of a bundle takes: the facts the host needs, and the index inputs it computes.

Two kinds, as `Family.vision` names them:

| kind | input | rows an image makes |
|---|---|---|
| `clip-projector` | `pixel_values` [images,3,H,W] | always as many |
| `qwen2_5_vl` | `pixel_values` [patches, C*T*P*P] and indices | one per merged block |

Both give `image_features` [rows, D] or [images, rows, D] in the order the images came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.errors import BundleError
from p2p_export.json_schema import first_error

IntArray = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


_SIDE = {"type": "integer", "minimum": 0, "maximum": 2**16}
# What each kind's graph may take.
INPUTS: Mapping[str, tuple[str, ...]] = {
    "clip-projector": ("pixel_values",),
    "qwen2_5_vl": (
        "pixel_values",
        "rotary_position_ids",
        "frame_rows",
        "frame_slots",
        "window_rows",
        "window_slots",
    ),
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["kind", "inputs", "rows_per_image", "spatial_merge_size", "window_blocks"],
    "properties": {
        "kind": {"enum": list(INPUTS)},
        "inputs": {
            "type": "array",
            "minItems": 1,
            "items": {"enum": sorted(set().union(*INPUTS.values()))},
        },
        "rows_per_image": {"type": ["integer", "null"], "minimum": 1, "maximum": 2**31 - 1},
        "spatial_merge_size": {**_SIDE, "minimum": 1},
        "window_blocks": _SIDE,
        "graph": {"type": "string", "minLength": 1},
        "weights": {"type": "string", "minLength": 1},
    },
}


@dataclass(frozen=True)
class VisionInfo:
    """How to feed `vision.onnx`; lies in the bundle's manifest under `vision`."""

    kind: str
    inputs: tuple[str, ...]
    # Rows one image makes, or None when its size decides.
    rows_per_image: int | None = None
    # Patches per side that become one row.
    spatial_merge_size: int = 1
    # Side of an attention window in merged blocks; 0 when every layer sees the whole image.
    window_blocks: int = 0
    graph: str = "vision.onnx"
    weights: str = "vision.weights.safetensors"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "inputs": list(self.inputs)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> VisionInfo:
        """Read the manifest's entry; `BundleError` when this version cannot use it."""
        error = first_error(dict(values), SCHEMA)
        if error is None:
            info = cls(**{**values, "inputs": tuple(values["inputs"])})
            error = info._misfit()
        if error is not None:
            raise BundleError(f"the manifest's `vision`: {error}; export the bundle again")
        return info

    def _misfit(self) -> str | None:
        """What of the fields does not go together, or None."""
        foreign = [name for name in self.inputs if name not in INPUTS[self.kind]]
        if foreign:
            return f"`inputs` names {foreign[0]}, which kind {self.kind} does not have"
        if (self.rows_per_image is None) != (self.kind == "qwen2_5_vl"):
            return f"`rows_per_image` is {self.rows_per_image}, which kind {self.kind} cannot have"
        return None


def vision_inputs(info: VisionInfo, processed: Mapping[str, Array]) -> dict[str, Array]:
    """The graph's inputs from what the image processor returned.

    `processed` holds `pixel_values` and, for `qwen2_5_vl`, `image_grid_thw` [images,3].
    """
    feed: dict[str, Array] = {"pixel_values": processed["pixel_values"]}
    if info.kind == "qwen2_5_vl":
        feed.update(qwen2_5_vl_indices(info, processed["image_grid_thw"]))
    return {name: feed[name] for name in info.inputs}


def image_rows(info: VisionInfo, processed: Mapping[str, Array]) -> list[int]:
    """Rows of `image_features` each image makes: as many placeholders its prompt needs."""
    if info.rows_per_image is not None:
        return [info.rows_per_image] * len(processed["pixel_values"])
    grids: IntArray = np.asarray(processed["image_grid_thw"], dtype=np.int64)
    rows: list[int] = (grids.prod(axis=1) // info.spatial_merge_size**2).tolist()
    return rows


def qwen2_5_vl_indices(info: VisionInfo, image_grid_thw: IntArray) -> dict[str, Array]:
    """Index inputs of Qwen2.5-VL's tower for any images, each grid (frames, height, width).

    Patches come block by block (a block: `spatial_merge_size` squared patches that become one
    row). Attention stays inside a frame, and inside a window of blocks in the windowed layers:
    groups are listed as rows [groups, longest] of patch numbers, -1 behind the shorter ones, and
    `…_slots` [patches] says where each patch stands in the flattened list.
    """
    merge = info.spatial_merge_size
    positions, frames, windows = [], [], []
    start = 0
    for grid in np.asarray(image_grid_thw, dtype=np.int64).tolist():
        for _ in range(grid[0]):
            places = _places_in_block_order(grid[1], grid[2], merge)
            positions.append(places)
            frames.append(np.arange(start, start + len(places)))
            if info.window_blocks:
                windows += _windows(places // (merge * info.window_blocks), start)
            start += len(places)
    found: dict[str, Array] = {"rotary_position_ids": np.concatenate(positions)}
    found["frame_rows"], found["frame_slots"] = _pad(frames, start)
    if info.window_blocks:
        found["window_rows"], found["window_slots"] = _pad(windows, start)
    return found


def _places_in_block_order(height: int, width: int, merge: int) -> IntArray:
    """[height*width, 2]: row and column of each patch, block by block."""
    places = np.indices((height, width), dtype=np.int64)
    blocks = places.reshape(2, height // merge, merge, width // merge, merge)
    return np.ascontiguousarray(blocks.transpose(1, 3, 2, 4, 0).reshape(-1, 2))


def _windows(window_of: IntArray, start: int) -> list[IntArray]:
    """Patch numbers of each window; `window_of` [patches,2] is a patch's window row and column."""
    keys = window_of[:, 0] * (window_of[:, 1].max() + 1) + window_of[:, 1]
    order = np.argsort(keys, kind="stable")
    ends = np.flatnonzero(np.diff(keys[order])) + 1
    return [part + start for part in np.split(order, ends)]


def _pad(groups: list[IntArray], patches: int) -> tuple[IntArray, IntArray]:
    longest = max(len(group) for group in groups)
    rows: IntArray = np.full((len(groups), longest), -1, dtype=np.int64)
    slots: IntArray = np.empty(patches, dtype=np.int64)
    for i, group in enumerate(groups):
        rows[i, : len(group)] = group
        slots[group] = i * longest + np.arange(len(group))
    return rows, slots
