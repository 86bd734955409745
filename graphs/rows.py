"""Rows of the two streams: where text and visual rows lie, how they part and come together again.

`text_index` [B,T] and `visual_index` [B,N] list this call's rows of each stream, -1 for padding.
All gathers run on rows flattened over the batch, with the indices computed once per graph. Rows
behind an index of -1 are copies of row 0: finite, and read by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import onnx_graphsurgeon as gs

from p2p_export.bindings import TEXT_INDEX, VISUAL_INDEX
from p2p_export.graphs.attention_mask import MASKED
from p2p_export.graphs.emit import BOOL, FLOAT32, INT64, Emitter
from p2p_export.graphs.locate import DecoderParts


@dataclass(frozen=True)
class Queries:
    """What attention needs to know of a set of query rows [B,R].

    `cos`, `sin` [B,1,R,head_dim] float32; `place` [B,1,R,1] in the context; `mask` float32,
    broadcastable to the scores; the two shapes split the scores of a key/value group into its
    heads and merge them again.
    """

    cos: gs.Tensor
    sin: gs.Tensor
    place: gs.Tensor
    mask: gs.Tensor
    split_scores: gs.Tensor
    merged_scores: gs.Tensor


class Rows:
    """The index arithmetic of one graph, each tensor written when first asked for."""

    def __init__(self, emitter: Emitter, decoder: DecoderParts) -> None:
        self._e = emitter
        self._decoder = decoder
        self.text_index = gs.Variable(TEXT_INDEX, INT64, ["batch", "text_rows"])
        self.visual_index = gs.Variable(VISUAL_INDEX, INT64, ["batch", "visual_rows"])

    @property
    def inputs(self) -> list[gs.Variable]:
        """The index inputs that what was written so far reads."""
        return [tensor for tensor in (self.text_index, self.visual_index) if tensor.outputs]

    # Sizes, each [1] int64.

    @cached_property
    def batch(self) -> gs.Tensor:
        with self._e.scope("rows"):
            return self._e.dimension(self._decoder.inputs_embeds, 0)

    @cached_property
    def sequence(self) -> gs.Tensor:
        with self._e.scope("rows"):
            return self._e.dimension(self._decoder.inputs_embeds, 1)

    @cached_property
    def text_rows(self) -> gs.Tensor:
        with self._e.scope("rows"):
            return self._e.dimension(self.text_index, 1)

    @cached_property
    def visual_rows(self) -> gs.Tensor:
        with self._e.scope("rows"):
            return self._e.dimension(self.visual_index, 1)

    @cached_property
    def context(self) -> gs.Tensor:
        """Tokens of the context: past and present."""
        with self._e.scope("rows"):
            return self._e.dimension(self._decoder.attention_mask, 1)

    @cached_property
    def past(self) -> gs.Tensor:
        """Tokens of the context before this call; a cache may hold fewer."""
        with self._e.scope("rows"):
            return self._e.op("Sub", self.context, self.sequence)

    # Taking rows apart.

    def text_of(self, full: gs.Tensor, width: int) -> gs.Tensor:
        """[B,S,width] -> [B,T,width]: the text rows."""
        return self._gather(full, width, self._text_flat)

    def visual_of(self, full: gs.Tensor, width: int) -> gs.Tensor:
        """[B,S,width] -> [B,N,width]: the visual rows."""
        return self._gather(full, width, self._visual_flat)

    def asked_of(self, full: gs.Tensor) -> gs.Tensor:
        """[B,S,C] -> [B,1,C]: the row whose logits are asked, the last one."""
        return self._e.slice(full, -1, None, axis=1)

    def asked_of_text(self, text: gs.Tensor, width: int) -> gs.Tensor:
        """[B,T,width] -> [B,1,width]: the asked row; meaningless where that row is visual."""
        return self._gather(text, width, self._asked_in_text_flat)

    # Putting rows together.

    def merge(self, text: gs.Tensor, visual: gs.Tensor, width: int) -> gs.Tensor:
        """[B,T,width] and [B,N,width] -> [B,S,width] in the order of the sequence."""
        return self._gather(self._e.concat([text, visual], axis=1), width, self._place_flat)

    def merge_constant(self, text: gs.Tensor, vector: gs.Tensor, width: int) -> gs.Tensor:
        """[B,T,width] and one [1,1,width] for every visual row -> [B,S,width]."""
        rows = self._gather(text, width, self._text_place_flat)
        return self._e.op("Where", self._is_text, rows, vector, dtype=self._e.dtype)

    @cached_property
    def asked_is_visual(self) -> gs.Tensor:
        """[B,1,1] bool"""
        with self._e.scope("rows"):
            place = self._e.slice(self._text_place, -1, None, axis=1)
            return self._e.unsqueeze(self._e.op("Equal", place, self.text_rows, dtype=BOOL), 2)

    # Queries.

    @cached_property
    def text_queries(self) -> Queries:
        """The text rows."""
        with self._e.scope("rows/text_queries"):
            return self._queries(
                self.text_of(self._decoder.cos, self._decoder.head_dim),
                self.text_of(self._decoder.sin, self._decoder.head_dim),
                self._text_sequence,
                self.text_rows,
            )

    @cached_property
    def text_and_asked_queries(self) -> Queries:
        """The text rows and behind them the asked row, whatever stream it is of."""
        with self._e.scope("rows/text_and_asked_queries"):
            cos, sin = self._decoder.cos, self._decoder.sin
            size = self._decoder.head_dim
            rows = self._e.add(self.text_rows, self._e.constant([1]))
            return self._queries(
                self._e.concat([self.text_of(cos, size), self.asked_of(cos)], axis=1),
                self._e.concat([self.text_of(sin, size), self.asked_of(sin)], axis=1),
                self._e.concat([self._text_sequence, self._last_sequence], axis=1),
                rows,
            )

    @cached_property
    def asked_queries(self) -> Queries:
        """The asked row alone."""
        with self._e.scope("rows/asked_queries"):
            return self._queries(
                self.asked_of(self._decoder.cos),
                self.asked_of(self._decoder.sin),
                self._last_sequence,
                self._e.constant([1]),
            )

    @cached_property
    def rotary(self) -> tuple[gs.Tensor, gs.Tensor]:
        """cos and sin of all rows, [B,1,S,head_dim] float32."""
        with self._e.scope("rows"):
            return (
                self._e.unsqueeze(self._decoder.cos, 1),
                self._e.unsqueeze(self._decoder.sin, 1),
            )

    def _queries(
        self, cos: gs.Tensor, sin: gs.Tensor, sequence: gs.Tensor, rows: gs.Tensor
    ) -> Queries:
        """`sequence` [B,R] are the queries' places in this call."""
        e, decoder = self._e, self._decoder
        groups = decoder.num_attention_heads // decoder.num_key_value_heads
        place = e.unsqueeze(e.add(sequence, self.past), 1, 3)
        keys = e.unsqueeze(e.arange(self.context), 0, 1, 2)
        earlier = e.op("LessOrEqual", keys, place, dtype=BOOL)
        padding = e.unsqueeze(decoder.attention_mask, 1, 2)
        real = e.op("Not", e.op("Equal", padding, e.constant(0), dtype=BOOL))
        visible = e.op("And", earlier, real)
        mask = e.op(
            "Where",
            visible,
            e.constant(0.0, FLOAT32),
            e.constant(MASKED, FLOAT32),
            dtype=FLOAT32,
        )
        heads = e.constant([decoder.num_key_value_heads])
        return Queries(
            cos=e.unsqueeze(cos, 1),
            sin=e.unsqueeze(sin, 1),
            place=place,
            mask=mask if groups == 1 else e.unsqueeze(mask, 2),
            split_scores=e.concat(
                [self.batch, heads, e.constant([groups]), rows, self.context], axis=0
            ),
            merged_scores=e.concat(
                [self.batch, heads, e.mul(e.constant([groups]), rows), self.context], axis=0
            ),
        )

    # Index arithmetic.

    @cached_property
    def _text_sequence(self) -> gs.Tensor:
        """[B,T] places in this call; padding stands at 0."""
        with self._e.scope("rows"):
            return self._e.op("Max", self.text_index, self._e.constant(0))

    @cached_property
    def _last_sequence(self) -> gs.Tensor:
        """[B,1]: the last place of this call."""
        with self._e.scope("rows"):
            last = self._e.op("Sub", self.sequence, self._e.constant([1]))
            return self._e.op("Expand", last, self._column)

    @cached_property
    def _text_flat(self) -> gs.Tensor:
        with self._e.scope("rows"):
            return self._flatten(self._text_sequence, self.sequence)

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

    @cached_property
    def _column(self) -> gs.Tensor:
        """Shape [B,1]."""
        return self._e.concat([self.batch, self._e.constant([1])], axis=0)

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
