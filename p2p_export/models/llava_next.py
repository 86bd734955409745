"""LLaVA-NeXT (1.6): any-resolution tiles, with an `image_newline` embedding behind each line.

The rows of one image are: the base tile (patches^2 rows), then the unpadded grid of tiles, line by
line, each line closed by one newline row (transformers' `pack_image_features`). The text model is
whatever the config says: Llama (Vicuna) and Mistral have the same parts under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from p2p_export.models.any_resolution import closed_lines, image_sizes, place_rows, unpadded_grid
from p2p_export.models.family import BoolArray, Family, IntArray


def newline_rows(input_ids: IntArray, config: Any, inputs: Mapping[str, Any]) -> BoolArray:
    """[B,S] bool: the `image_newline` rows; needs `image_sizes` as the processor returns it."""
    tile = config.vision_config.image_size
    patches = tile // config.vision_config.patch_size
    base: BoolArray = np.zeros(patches**2, dtype=np.bool_)
    runs = []
    for size in image_sizes(inputs):
        grid = unpadded_grid(size, config.image_grid_pinpoints, tile, patches)
        runs.append(np.concatenate([base, closed_lines(*grid)]))
    return place_rows(input_ids, config.image_token_id, runs, of="image")


LLAVA_NEXT = Family(
    architecture="llava_next",
    position_scheme="sequential",
    visual_token_ids=lambda config: (config.image_token_id,),
    vision=None,
    newline_rows=newline_rows,
)
