"""Position ids as transformers computes them, in NumPy, so that a bundle needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
PositionScheme = Literal["sequential", "mrope"]


def sequential_position_ids(attention_mask: IntArray) -> IntArray:
    """[B,S] -> [B,S]: real tokens count from 0; left padding gets 0."""
    counted: IntArray = np.cumsum(attention_mask, axis=-1, dtype=np.int64) - 1
    return np.maximum(counted, 0)


def mrope_position_ids(
    attention_mask: IntArray,
    visual_mask: BoolArray,
    image_grid_thw: IntArray,
    *,
    spatial_merge_size: int,
) -> IntArray:
    """[B,S] -> [3,B,S]: text counts on all axes, an image spans (t, h, w) and then jumps past it.

    `image_grid_thw` [images,3] lists patches per axis, in order of appearance over the batch; the
    rule is `get_rope_index` of transformers' Qwen2.5-VL for images. Padding gets 1.
    """
    batch, length = attention_mask.shape
    positions: IntArray = np.ones((3, batch, length), dtype=np.int64)
    grids = iter(np.asarray(image_grid_thw, dtype=np.int64).tolist())
    for row in range(batch):
        real = np.flatnonzero(attention_mask[row])
        parts: list[IntArray] = []
        at = 0
        for visual, run in groupby(visual_mask[row, real].tolist()):
            left = len(list(run))
            if not visual:
                parts.append(np.broadcast_to(np.arange(at, at + left), (3, left)))
                at += left
            while visual and left > 0:
                image = _image_positions(next(grids), spatial_merge_size)
                parts.append(image + at)
                at += int(image.max()) + 1 if image.size else 0
                left -= image.shape[1]
        if parts:
            positions[:, row, real] = np.concatenate(parts, axis=1)
    return positions


def next_position_ids(scheme: PositionScheme, position_ids: IntArray, steps: int = 1) -> IntArray:
    """Ids of the `steps` text tokens behind `position_ids` ([B,S] or [3,B,S])."""
    axes: tuple[int, ...] = (0, 2) if scheme == "mrope" else (1,)
    highest = position_ids.max(axis=axes)
    following: IntArray = highest[:, None] + 1 + np.arange(steps, dtype=np.int64)[None, :]
    return np.broadcast_to(following, (3, *following.shape)) if scheme == "mrope" else following


def _image_positions(grid: Sequence[int], spatial_merge_size: int) -> IntArray:
    frames, height, width = grid[0], grid[1] // spatial_merge_size, grid[2] // spatial_merge_size
    return np.indices((frames, height, width), dtype=np.int64).reshape(3, -1)
