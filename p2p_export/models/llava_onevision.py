"""LLaVA-OneVision: any-resolution tiles with a limit, several images, video; Qwen2 text model.

Rows, as transformers' `pack_image_features` and `get_video_features` lay them out (P = patches a
tile has per side):

- the only image of its prompt: P^2 rows of the base tile, then the unpadded grid of tiles, line by
  line, each line closed by a newline row. `vision_aspect_ratio` "anyres_max_N" scales a grid of
  more than 1.1^2 N P^2 patches down to about N P^2;
- one of several images of a prompt: P^2 rows and one newline row;
- a video: ceil(P/2)^2 rows a frame, and one newline row behind the last frame.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from p2p_export.errors import InputError
from p2p_export.models.any_resolution import closed_lines, image_sizes, place_rows, unpadded_grid
from p2p_export.models.family import BoolArray, Family, IntArray

# A grid is scaled down when its sides are this much longer than the limit allows.
LONGEST_SIDES = 1.1


def newline_rows(input_ids: IntArray, config: Any, inputs: Mapping[str, Any]) -> BoolArray:
    """[B,S] bool: the `image_newline` rows of images and videos.

    `inputs` is what the processor returned: `image_sizes` and `batch_num_images` of the images
    (without the latter each counts as its prompt's only one, as in transformers), and
    `pixel_values_videos` of the videos.
    """
    ids = np.asarray(input_ids)
    rows: BoolArray = np.zeros(ids.shape, dtype=np.bool_)
    if (ids == config.image_token_id).any():
        rows |= place_rows(ids, config.image_token_id, _image_runs(config, inputs), of="image")
    if (ids == config.video_token_id).any():
        rows |= place_rows(ids, config.video_token_id, _video_runs(config, inputs), of="video")
    return rows


def _image_runs(config: Any, inputs: Mapping[str, Any]) -> list[BoolArray]:
    tile = config.vision_config.image_size
    patches = tile // config.vision_config.patch_size
    sizes = image_sizes(inputs)
    together = np.asarray(inputs.get("batch_num_images", [1] * len(sizes)), dtype=np.int64)
    if together.sum() != len(sizes):
        raise InputError(
            f"`batch_num_images` counts {together.sum()} images and `image_sizes` holds "
            f"{len(sizes)}; pass what the processor returned"
        )
    base: BoolArray = np.zeros(patches**2, dtype=np.bool_)
    runs = []
    for size, companions in zip(sizes, np.repeat(together, together), strict=True):
        if companions > 1:
            runs.append(closed_lines(1, patches**2))
            continue
        grid = unpadded_grid(size, config.image_grid_pinpoints, tile, patches)
        grid = _limited(grid, patches, _most_tiles(config.vision_aspect_ratio))
        runs.append(np.concatenate([base, closed_lines(*grid)]))
    return runs


def _limited(grid: tuple[int, int], patches: int, most_tiles: int) -> tuple[int, int]:
    """Lines and columns of what a grid is scaled down to, or the grid itself."""
    lines, columns = grid
    ratio = math.sqrt(lines * columns / (most_tiles * patches**2))
    return (int(lines // ratio), int(columns // ratio)) if ratio > LONGEST_SIDES else grid


def _most_tiles(vision_aspect_ratio: str) -> int:
    match = re.fullmatch(r"anyres_max_([1-9]\d*)", str(vision_aspect_ratio))
    if match is None:
        raise InputError(
            f"newline rows are known for vision_aspect_ratio 'anyres_max_N' and this model's is "
            f"{vision_aspect_ratio!r}; count newline rows as visual"
        )
    return int(match[1])


def _video_runs(config: Any, inputs: Mapping[str, Any]) -> list[BoolArray]:
    if "pixel_values_videos" not in inputs:
        raise InputError(
            "newline rows count as text here and the inputs have no `pixel_values_videos` to find "
            "those of the video by; pass what the processor returned"
        )
    patches = config.vision_config.image_size // config.vision_config.patch_size
    rows_per_frame = math.ceil(patches / 2) ** 2
    videos = inputs["pixel_values_videos"]
    return [closed_lines(1, len(frames) * rows_per_frame) for frames in videos]


LLAVA_ONEVISION = Family(
    architecture="llava_onevision",
    position_scheme="sequential",
    visual_token_ids=lambda config: (config.image_token_id, config.video_token_id),
    vision=None,
    newline_rows=newline_rows,
)
