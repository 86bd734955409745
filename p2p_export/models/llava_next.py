"""LLaVA-NeXT (1.6): any-resolution tiles, with an `image_newline` embedding behind each row.

The rows of one image are: the base tile (patches^2 rows), then the unpadded grid of tiles, line by
line, each line closed by one newline row (transformers' `pack_image_features`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from p2p_export.errors import InputError
from p2p_export.models.family import BoolArray, Family, IntArray


def unpadded_grid(
    image_size: tuple[int, int], pinpoints: list[list[int]], tile: int, patches: int
) -> tuple[int, int]:
    """Lines and columns of the unpadded patch grid of an image of `image_size` (height, width)."""
    from transformers.image_processing_utils import select_best_resolution

    best_height, best_width = select_best_resolution(image_size, pinpoints)
    height, width = best_height // tile * patches, best_width // tile * patches
    original_height, original_width = image_size
    if original_width / original_height > width / height:
        new_height = int(round(original_height * (width / original_width), 7))
        padding = (height - new_height) // 2
        return height - 2 * padding, width
    new_width = int(round(original_width * (height / original_height), 7))
    padding = (width - new_width) // 2
    return height, width - 2 * padding


def newline_rows(input_ids: IntArray, config: Any, inputs: Mapping[str, Any]) -> BoolArray:
    """[B,S] bool: the `image_newline` rows; needs `image_sizes` as the processor returns it."""
    if "image_sizes" not in inputs:
        raise InputError(
            "newline rows count as text here and the inputs have no `image_sizes` to find them by; "
            "pass what the processor returned"
        )
    tile = config.vision_config.image_size
    patches = tile // config.vision_config.patch_size
    runs: list[BoolArray] = []
    for height, width in np.asarray(inputs["image_sizes"]).tolist():
        lines, columns = unpadded_grid((height, width), config.image_grid_pinpoints, tile, patches)
        line = np.zeros(columns + 1, dtype=np.bool_)
        line[-1] = True
        runs.append(np.concatenate([np.zeros(patches**2, dtype=np.bool_), np.tile(line, lines)]))
    places = np.concatenate(runs) if runs else np.zeros(0, dtype=np.bool_)
    mask: BoolArray = np.asarray(input_ids) == config.image_token_id
    if mask.sum() != places.size:
        raise InputError(
            f"the prompt holds {int(mask.sum())} image tokens and the images make {places.size} "
            "rows; prepare both with the model's own processor"
        )
    newline: BoolArray = np.zeros_like(mask)
    newline[mask] = places
    return newline


LLAVA_NEXT = Family(
    architecture="llava_next",
    position_scheme="sequential",
    visual_token_ids=lambda config: (config.image_token_id,),
    vision=None,
    newline_rows=newline_rows,
)
