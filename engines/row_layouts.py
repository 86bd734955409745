"""Which rows of a call are text and which are visual, as a graph of either layout wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p2p_export.bindings import TEXT_INDEX, VISUAL_END, VISUAL_INDEX, VISUAL_START
from p2p_export.engines.row_index import row_indices
from p2p_export.errors import InputError

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class LayoutError(InputError):
    """A visual mask that the bundle's layout cannot express."""


@dataclass(frozen=True)
class CallRows:
    """The streams of one call.

    `feeds`: the layout's inputs by name. `text_mask` [B,T]: 1 where a text row is a token.
    `visual_index` [B,N]: the visual rows, -1 = padding.
    """

    feeds: Mapping[str, IntArray]
    text_mask: IntArray
    visual_index: IntArray


def index_rows(visual_mask: BoolArray, attention_mask: IntArray) -> CallRows:
    """Any rows, each stream's by their indices."""
    text_index, visual_index = row_indices(visual_mask, attention_mask)
    feeds = {TEXT_INDEX: text_index, VISUAL_INDEX: visual_index}
    return CallRows(feeds, (text_index >= 0).astype(np.int64), visual_index)


def span_rows(visual_mask: BoolArray, attention_mask: IntArray) -> CallRows:
    """One block at the same place in every batch row; all other rows count as text.

    Raises `LayoutError` for any other mask.
    """
    batch, length = visual_mask.shape
    columns = np.flatnonzero(visual_mask.any(axis=0))
    start, end = (int(columns[0]), int(columns[-1]) + 1) if columns.size else (0, 0)
    wanted = np.zeros_like(visual_mask)
    wanted[:, start:end] = True
    if (visual_mask != wanted).any():
        row = int(np.flatnonzero((visual_mask != wanted).any(axis=1))[0])
        raise LayoutError(
            f"visual_mask of batch row {row} is not the block of rows {start} to {end - 1} that "
            "this bundle's layout `span` needs in every row; export with --layout index"
        )
    if end - start == length:
        raise LayoutError(
            "all rows of this call are visual and layout `span` needs at least one text row in a "
            "call; end the chunk elsewhere or export with --layout index"
        )
    text_mask = np.delete(attention_mask, np.s_[start:end], axis=1)
    places = np.arange(start, end) if end > start else np.array([-1])
    visual_index = np.repeat(places[None], batch, axis=0)
    feeds = {VISUAL_START: np.array(start), VISUAL_END: np.array(end)}
    return CallRows(feeds, text_mask, visual_index)


ROW_LAYOUTS: Mapping[str, Callable[[BoolArray, IntArray], CallRows]] = {
    "index": index_rows,
    "span": span_rows,
}
