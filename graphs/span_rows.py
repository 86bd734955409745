"""Layout `span`: one block of visual rows, at the same place in every row of the batch.

`visual_start` and `visual_end` say where it lies in this call; rows are sliced and concatenated.
Every other row is a text row, padding included, and there is at least one.
"""

from __future__ import annotations

from functools import cached_property

import onnx_graphsurgeon as gs

from p2p_export.bindings import VISUAL_END, VISUAL_START
from p2p_export.graphs.decoder_parts import DecoderParts
from p2p_export.graphs.emit import BOOL, INT64, Emitter
from p2p_export.graphs.rows import Rows


class SpanRows(Rows):
    """Rows by the bounds of the visual block."""

    def __init__(self, emitter: Emitter, decoder: DecoderParts) -> None:
        super().__init__(emitter, decoder)
        self.visual_start = gs.Variable(VISUAL_START, INT64, [])
        self.visual_end = gs.Variable(VISUAL_END, INT64, [])
        self._inputs = (self.visual_start, self.visual_end)

    @cached_property
    def text_rows(self) -> gs.Tensor:
        with self._e.scope("rows"):
            return self._e.op("Sub", self.sequence, self.visual_rows)

    @cached_property
    def visual_rows(self) -> gs.Tensor:
        """[1]: N."""
        with self._e.scope("rows"):
            return self._e.op("Sub", self._end, self._start)

    @cached_property
    def text_sequence(self) -> gs.Tensor:
        with self._e.scope("rows"):
            e = self._e
            every = e.arange(self.sequence)
            text = e.concat(
                [e.slice(every, 0, self._start, 0), e.slice(every, self._end, None, 0)], 0
            )
            return e.op("Expand", e.unsqueeze(text, 0), e.concat([self.batch, self.text_rows], 0))

    @cached_property
    def asked_is_visual(self) -> gs.Tensor:
        with self._e.scope("rows"):
            e = self._e
            at_the_end = e.op("Equal", self._end, self.sequence, dtype=BOOL)
            some = e.op("Less", self._start, self._end, dtype=BOOL)
            return e.unsqueeze(e.op("And", at_the_end, some), 0, 1)

    def text_of(self, full: gs.Tensor, width: int) -> gs.Tensor:
        before = self._e.slice(full, 0, self._start, axis=1)
        return self._e.concat([before, self._e.slice(full, self._end, None, axis=1)], axis=1)

    def visual_of(self, full: gs.Tensor, width: int) -> gs.Tensor:
        return self._e.slice(full, self._start, self._end, axis=1)

    def asked_of_text(self, text: gs.Tensor, width: int) -> gs.Tensor:
        return self._e.slice(text, -1, None, axis=1)

    def merge(self, text: gs.Tensor, visual: gs.Tensor, width: int) -> gs.Tensor:
        before = self._e.slice(text, 0, self._start, axis=1)
        behind = self._e.slice(text, self._start, None, axis=1)
        return self._e.concat([before, visual, behind], axis=1)

    def merge_constant(self, text: gs.Tensor, vector: gs.Tensor, width: int) -> gs.Tensor:
        e = self._e
        shape = e.concat([self.batch, self.visual_rows, e.constant([width])], axis=0)
        return self.merge(text, e.op("Expand", vector, shape), width)

    @cached_property
    def _start(self) -> gs.Tensor:
        """[1]"""
        with self._e.scope("rows"):
            return self._e.unsqueeze(self.visual_start, 0)

    @cached_property
    def _end(self) -> gs.Tensor:
        """[1]"""
        with self._e.scope("rows"):
            return self._e.unsqueeze(self.visual_end, 0)
