"""Layout `index`: rows of each stream are listed, so that any row of any batch row can be visual.

`text_index` [B,T] and `visual_index` [B,N] list this call's rows of each stream, -1 for padding.
All gathers run on rows flattened over the batch, with the indices computed once per graph. Rows
behind an index of -1 are copies of row 0: finite, and read by nobody.
"""

from __future__ import annotations

from functools import cached_property

import onnx_graphsurgeon as gs

from p2p_export.bindings import TEXT_INDEX, VISUAL_INDEX
from p2p_export.graphs.decoder_parts import DecoderParts
from p2p_export.graphs.emit import BOOL, INT64, Emitter
from p2p_export.graphs.rows import Rows


class IndexRows(Rows):
    """Rows by their indices."""

    def __init__(self, emitter: Emitter, decoder: DecoderParts) -> None:
        super().__init__(emitter, decoder)
        self.text_index = gs.Variable(TEXT_INDEX, INT64, ["batch", "text_rows"])
        self.visual_index = gs.Variable(VISUAL_INDEX, INT64, ["batch", "visual_rows"])
        self._inputs = (self.text_index, self.visual_index)

    @cached_property
    def text_rows(self) -> gs.Tensor:
        with self._e.scope("rows"):
            return self._e.dimension(self.text_index, 1)

    @cached_property
    def visual_rows(self) -> gs.Tensor:
        """[1]: N."""
        with self._e.scope("rows"):
            return self._e.dimension(self.visual_index, 1)

    def text_of(self, full: gs.Tensor, width: int) -> gs.Tensor:
        return self._gather(full, width, self._text_flat)

    def visual_of(self, full: gs.Tensor, width: int) -> gs.Tensor:
        return self._gather(full, width, self._visual_flat)

    def asked_of_text(self, text: gs.Tensor, width: int) -> gs.Tensor:
        return self._gather(text, width, self._asked_in_text_flat)

    def merge(self, text: gs.Tensor, visual: gs.Tensor, width: int) -> gs.Tensor:
        return self._gather(self._e.concat([text, visual], axis=1), width, self._place_flat)

    def merge_constant(self, text: gs.Tensor, vector: gs.Tensor, width: int) -> gs.Tensor:
        rows = self._gather(text, width, self._text_place_flat)
        return self._e.op("Where", self._is_text, rows, vector, dtype=self._e.dtype)

    @cached_property
    def asked_is_visual(self) -> gs.Tensor:
        with self._e.scope("rows"):
            place = self._e.slice(self._text_place, -1, None, axis=1)
            return self._e.unsqueeze(self._e.op("Equal", place, self.text_rows, dtype=BOOL), 2)

    # Index arithmetic.

    @cached_property
    def text_sequence(self) -> gs.Tensor:
        """[B,T] places in this call; padding stands at 0."""
        with self._e.scope("rows"):
            return self._e.op("Max", self.text_index, self._e.constant(0))

    @cached_property
    def _text_flat(self) -> gs.Tensor:
        with self._e.scope("rows"):
            return self._flatten(self.text_sequence, self.sequence)

    @cached_property
    def _visual_flat(self) -> gs.Tensor:
        with self._e.scope("rows"):
            place = self._e.op("Max", self.visual_index, self._e.constant(0))
            return self._flatten(place, self.sequence)

    @cached_property
    def _text_place(self) -> gs.Tensor:
        """[B,S]: which of the T text rows a row of the sequence is; T where it is none."""
        with self._e.scope("rows"):
            shape = self._e.concat([self.batch, self._sequence_and_spare], axis=0)
            none = self._e.op("Expand", self.text_rows, shape)
            return self._scatter(none, self.text_index, self._e.arange(self.text_rows))

    @cached_property
    def _place_flat(self) -> gs.Tensor:
        """[B,S]: which of the T text and N visual rows behind them a row of the sequence is."""
        with self._e.scope("rows"):
            spare = self._e.op("Expand", self.text_rows, self._column)
            base = self._e.concat([self._text_place, spare], axis=1)
            numbers = self._e.add(self._e.arange(self.visual_rows), self.text_rows)
            place = self._scatter(base, self.visual_index, numbers)
            return self._flatten(place, self._e.add(self.text_rows, self.visual_rows))

    @cached_property
    def _is_text(self) -> gs.Tensor:
        """[B,S,1] bool"""
        with self._e.scope("rows"):
            text = self._e.op("Less", self._text_place, self.text_rows, dtype=BOOL)
            return self._e.unsqueeze(text, 2)

    @cached_property
    def _text_place_flat(self) -> gs.Tensor:
        """[B,S]: as `_text_place`, flattened; some text row where it is none."""
        with self._e.scope("rows"):
            last = self._e.op("Sub", self.text_rows, self._e.constant([1]))
            return self._flatten(self._e.op("Min", self._text_place, last), self.text_rows)

    @cached_property
    def _asked_in_text_flat(self) -> gs.Tensor:
        with self._e.scope("rows"):
            return self._e.slice(self._text_place_flat, -1, None, axis=1)

    @cached_property
    def _sequence_and_spare(self) -> gs.Tensor:
        """[1]: S + 1; the spare place takes what index -1 writes."""
        return self._e.add(self.sequence, self._e.constant([1]))

    def _scatter(self, base: gs.Tensor, index: gs.Tensor, numbers: gs.Tensor) -> gs.Tensor:
        """Write `numbers` [R] at `index` [B,R] of `base` [B,S+1]; return its first S columns."""
        e = self._e
        absent = e.op("Less", index, e.constant(0), dtype=BOOL)
        target = e.op("Where", absent, self.sequence, index, dtype=INT64)
        shape = e.op("Shape", index, dtype=INT64)
        updates = e.op("Expand", numbers, shape)
        scattered = e.op("ScatterElements", base, target, updates, axis=1)
        return e.slice(scattered, 0, -1, axis=1)

    def _flatten(self, index: gs.Tensor, length: gs.Tensor) -> gs.Tensor:
        """Indices into rows [B,length] -> indices into the same rows flattened to [B*length]."""
        starts = self._e.mul(self._e.arange(self.batch), length)
        return self._e.add(index, self._e.unsqueeze(starts, 1))

    def _gather(self, rows: gs.Tensor, width: int, flat: gs.Tensor) -> gs.Tensor:
        return self._e.op("Gather", self._e.reshape(rows, [-1, width]), flat, axis=0)
