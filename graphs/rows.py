"""Rows of the two streams: how text and visual rows part and come together again.

What a lowering asks of a layout; `index_rows` and `span_rows` answer it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import onnx
import onnx_graphsurgeon as gs

from p2p_export.graphs.attention_mask import MASKED
from p2p_export.graphs.decoder_parts import DecoderParts
from p2p_export.graphs.emit import BOOL, FLOAT32, INT64, Emitter


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


class Rows(ABC):
    """The index arithmetic of one graph, each tensor written when first asked for."""

    def __init__(self, emitter: Emitter, decoder: DecoderParts) -> None:
        self._e = emitter
        self._decoder = decoder

    @property
    def inputs(self) -> list[gs.Variable]:
        """The layout's inputs that what was written so far reads."""
        return [tensor for tensor in self._inputs if tensor.outputs]

    # What a layout provides.

    _inputs: tuple[gs.Variable, ...]

    @property
    @abstractmethod
    def text_rows(self) -> gs.Tensor:
        """[1]: T, text rows of this call."""

    @property
    @abstractmethod
    def text_sequence(self) -> gs.Tensor:
        """[B,T] or [1,T]: places of the text rows in this call."""

    @property
    @abstractmethod
    def asked_is_visual(self) -> gs.Tensor:
        """[B,1,1] or [1,1,1] bool: whether the row whose logits are asked is visual."""

    @abstractmethod
    def text_of(self, full: gs.Tensor, width: int) -> gs.Tensor:
        """[B,S,width] -> [B,T,width]: the text rows."""

    @abstractmethod
    def visual_of(self, full: gs.Tensor, width: int) -> gs.Tensor:
        """[B,S,width] -> [B,N,width]: the visual rows."""

    @abstractmethod
    def asked_of_text(self, text: gs.Tensor, width: int) -> gs.Tensor:
        """[B,T,width] -> [B,1,width]: the asked row; meaningless where that row is visual."""

    @abstractmethod
    def merge(self, text: gs.Tensor, visual: gs.Tensor, width: int) -> gs.Tensor:
        """[B,T,width] and [B,N,width] -> [B,S,width] in the order of the sequence."""

    @abstractmethod
    def merge_constant(self, text: gs.Tensor, vector: gs.Tensor, width: int) -> gs.Tensor:
        """[B,T,width] and one [1,1,width] for every visual row -> [B,S,width]."""

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
    def context(self) -> gs.Tensor:
        """Tokens of the context: past and present."""
        with self._e.scope("rows"):
            return self._e.dimension(self._decoder.attention_mask, 1)

    @cached_property
    def past(self) -> gs.Tensor:
        """Tokens of the context before this call; a cache may hold fewer."""
        with self._e.scope("rows"):
            return self._e.op("Sub", self.context, self.sequence)

    def asked_of(self, full: gs.Tensor) -> gs.Tensor:
        """[B,S,C] -> [B,1,C]: the row whose logits are asked, the last one."""
        return self._e.slice(full, -1, None, axis=1)

    # Queries.

    @cached_property
    def text_queries(self) -> Queries:
        """The text rows."""
        with self._e.scope("rows/text_queries"):
            return self._queries(
                self.text_of(self._decoder.cos, self._decoder.head_dim),
                self.text_of(self._decoder.sin, self._decoder.head_dim),
                self.text_sequence,
                self.text_rows,
            )

    @cached_property
    def visual_asked_rows(self) -> gs.Tensor:
        """[1]: 1 where the asked row of some batch row is visual, 0 where all are text rows."""
        with self._e.scope("rows"):
            marks = self._e.op("Cast", self.asked_is_visual, dtype=INT64, to=onnx.TensorProto.INT64)
            return self._e.reshape(
                self._e.op("ReduceMax", marks, keepdims=0), self._e.constant([1])
            )

    def visual_asked_of(self, full: gs.Tensor) -> gs.Tensor:
        """[B,S,C] -> [B,1,C], the asked row, or [B,0,C] where it is a text row in all the batch."""
        return self._e.slice(self.asked_of(full), 0, self.visual_asked_rows, axis=1)

    @cached_property
    def text_and_asked_queries(self) -> Queries:
        """The text rows and behind them the asked row, where that is visual."""
        with self._e.scope("rows/text_and_asked_queries"):
            cos, sin = self._decoder.cos, self._decoder.sin
            size = self._decoder.head_dim
            last = self._e.slice(self._last_sequence, 0, self.visual_asked_rows, axis=1)
            return self._queries(
                self._e.concat([self.text_of(cos, size), self.visual_asked_of(cos)], axis=1),
                self._e.concat([self.text_of(sin, size), self.visual_asked_of(sin)], axis=1),
                self._e.concat([self.text_sequence, last], axis=1),
                self._e.add(self.text_rows, self.visual_asked_rows),
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

    @cached_property
    def _last_sequence(self) -> gs.Tensor:
        """[B,1]: the last place of this call."""
        with self._e.scope("rows"):
            last = self._e.op("Sub", self.sequence, self._e.constant([1]))
            return self._e.op("Expand", last, self._column)

    @cached_property
    def _column(self) -> gs.Tensor:
        """Shape [B,1]."""
        return self._e.concat([self.batch, self._e.constant([1])], axis=0)
