"""Which rows of a call are text and which are visual, as the graph wants them (layout `index`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

PADDING = -1


def row_indices(visual_mask: BoolArray, attention_mask: IntArray) -> tuple[IntArray, IntArray]:
    """[B,S] masks -> `text_index` [B,T] and `visual_index` [B,N], rows in order, -1 behind.

    Padding rows are in neither. T and N are those of the fullest row of the batch, and at least 1:
    a stream without any row is a column of -1.
    """
    real = attention_mask != 0
    return _places(real & ~visual_mask), _places(real & visual_mask)


def _places(mask: BoolArray) -> IntArray:
    counts = mask.sum(axis=1)
    width = max(1, int(counts.max()))
    index = np.full((mask.shape[0], width), PADDING, dtype=np.int64)
    rows, columns = np.nonzero(mask)
    starts = np.cumsum(counts) - counts
    index[rows, np.arange(rows.size) - starts[rows]] = columns
    return index
