"""Which tokens a session's context holds, in order, whatever its cache keeps of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.bindings import (
    ATTENTION_MASK,
    TEXT_ATTENTION_MASK,
    VISUAL_POSITION_IDS,
    VISUAL_SEQUENCE_INDEX,
)
from p2p_export.engines.row_layouts import CallRows

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# The place in the context of a column that holds no visual token: behind every query.
NOWHERE = 2**31 - 1


@dataclass(frozen=True)
class Context:
    """The tokens of B rows, each array in the order of the sequence.

    `attention_mask` [B,P]: every token, 0 = padding. `text_mask` [B,P_text]: the columns of a cache
    that holds text alone, 0 = padding. `visual_position_ids` [B,V] or [3,B,V] and
    `visual_sequence_index` [B,V] (place in the context, `NOWHERE` = padding): visual tokens.
    """

    attention_mask: IntArray
    text_mask: IntArray
    visual_position_ids: IntArray
    visual_sequence_index: IntArray

    @classmethod
    def empty(cls, batch: int, position_axes: int) -> Context:
        none = np.zeros((batch, 0), dtype=np.int64)
        axes = (position_axes,) if position_axes > 1 else ()
        return cls(none, none, np.zeros((*axes, batch, 0), dtype=np.int64), none)

    @property
    def length(self) -> int:
        """Positions, padding included."""
        return int(self.attention_mask.shape[1])

    @property
    def visual_tokens(self) -> IntArray:
        """[B]: visual tokens of each row."""
        counts: IntArray = (self.visual_sequence_index != NOWHERE).sum(axis=1).astype(np.int64)
        return counts

    def with_rows(
        self,
        attention_mask: IntArray,
        position_ids: IntArray,
        rows: CallRows,
    ) -> Context:
        """With a call's rows behind: [B,S] mask, their positions, and which are of which stream."""
        visual_index = rows.visual_index
        positions, places = self.visual_position_ids, self.visual_sequence_index
        if (visual_index >= 0).any():
            batch = np.arange(len(visual_index))[:, None]
            new = position_ids[..., batch, np.maximum(visual_index, 0)]
            positions = np.concatenate([positions, new], axis=-1)
            here = np.where(visual_index >= 0, visual_index + self.length, NOWHERE)
            places = np.concatenate([places, here], axis=1)
        return Context(
            np.concatenate([self.attention_mask, attention_mask], axis=1),
            np.concatenate([self.text_mask, rows.text_mask], axis=1),
            positions,
            places,
        )

    def with_text_mask(self, text_mask: IntArray) -> Context:
        return replace(self, text_mask=text_mask)

    def feeds(self) -> Mapping[str, npt.NDArray[Any]]:
        """Inputs of a decoder graph by name; visual ones have at least one column."""
        positions, places = self.visual_position_ids, self.visual_sequence_index
        if places.shape[1] == 0:
            positions = np.zeros((*positions.shape[:-1], 1), dtype=np.int64)
            places = np.full((len(places), 1), NOWHERE, dtype=np.int64)
        return {
            ATTENTION_MASK: self.attention_mask,
            TEXT_ATTENTION_MASK: self.text_mask,
            VISUAL_POSITION_IDS: positions,
            VISUAL_SEQUENCE_INDEX: places,
        }
