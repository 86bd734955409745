"""Images of any resolution cut into tiles: which of their rows close a line (`image_newline`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from p2p_export.errors import InputError
from p2p_export.models.family import BoolArray, IntArray


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


def closed_lines(lines: int, columns: int) -> BoolArray:
    """[lines * (columns + 1)] bool: a newline row behind each line."""
    line: BoolArray = np.zeros(columns + 1, dtype=np.bool_)
    line[-1] = True
    return np.tile(line, lines)


def image_sizes(inputs: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(height, width) of each image, as the processor returned them."""
    if "image_sizes" not in inputs:
        raise InputError(
            "newline rows count as text here and the inputs have no `image_sizes` to find them by; "
            "pass what the processor returned"
        )
    return [(int(height), int(width)) for height, width in np.asarray(inputs["image_sizes"])]


def place_rows(
    input_ids: IntArray, token_id: int, runs: Sequence[BoolArray], *, of: str
) -> BoolArray:
    """[B,S] bool: the marks of `runs`, one per image or video, on the rows of their placeholders.

    Raises `InputError` when the prompt holds another number of placeholders.
    """
    marks = np.concatenate(runs) if runs else np.zeros(0, dtype=np.bool_)
    mask: BoolArray = np.asarray(input_ids) == token_id
    if mask.sum() != marks.size:
        raise InputError(
            f"the prompt holds {int(mask.sum())} {of} tokens and the {of}s make {marks.size} "
            "rows; prepare both with the model's own processor"
        )
    placed: BoolArray = np.zeros_like(mask)
    placed[mask] = marks
    return placed
