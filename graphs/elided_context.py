"""What the queries of `elided` layers see: cached text tokens, and visual tokens by position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import onnx_graphsurgeon as gs

from p2p_export.bindings import TEXT_ATTENTION_MASK, VISUAL_POSITION_IDS, VISUAL_SEQUENCE_INDEX
from p2p_export.graphs.attention_mask import MASKED
from p2p_export.graphs.decoder_parts import DecoderParts
from p2p_export.graphs.emit import BOOL, FLOAT32, INT64, Emitter
from p2p_export.graphs.rows import Queries, Rows


@dataclass(frozen=True)
class ElidedQueries:
    """A set of query rows over text columns and, behind them, visual tokens.

    `mask` float32, broadcastable to the scores; `split_scores` parts the heads of a key/value
    group, `merged_scores` puts those over text columns together again.
    """

    rows: Queries
    mask: gs.Tensor
    split_scores: gs.Tensor
    merged_scores: gs.Tensor


class ElidedContext:
    """Tensors that all `elided` layers of one graph share, each written when first asked for."""

    def __init__(self, emitter: Emitter, decoder: DecoderParts, rows: Rows) -> None:
        self._e = emitter
        self._decoder = decoder
        self._rows = rows
        axes = list(decoder.position_ids.shape[:-2])
        self.text_mask = gs.Variable(TEXT_ATTENTION_MASK, INT64, ["batch", "text_context"])
        self.positions = gs.Variable(VISUAL_POSITION_IDS, INT64, [*axes, "batch", "visual_context"])
        self.sequence = gs.Variable(VISUAL_SEQUENCE_INDEX, INT64, ["batch", "visual_context"])

    @property
    def inputs(self) -> list[gs.Variable]:
        """The inputs that what was written so far reads."""
        every = (self.text_mask, self.positions, self.sequence)
        return [tensor for tensor in every if tensor.outputs]

    @cached_property
    def table(self) -> gs.Tensor:
        """[cos|sin] of the visual positions, [B,head_dim,V]."""
        with self._e.scope("elided"):
            both = self._e.concat(self._rotary_halves(), axis=2)
            return self._e.transpose(self._e.narrow(both), (0, 2, 1))

    @cached_property
    def text_columns(self) -> gs.Tensor:
        """[1]: columns of an elided cache, this call's included."""
        with self._e.scope("elided"):
            return self._e.dimension(self.text_mask, 1)

    @cached_property
    def text_queries(self) -> ElidedQueries:
        """The text rows: of this call's columns each sees those up to its own."""
        with self._e.scope("elided/text_queries"):
            e, rows = self._e, self._rows
            past = e.op("Sub", self.text_columns, rows.text_rows)
            last = e.add(e.arange(rows.text_rows), past)
            return self._queries(rows.text_queries, e.unsqueeze(last, 0, 1, 3), rows.text_rows)

    @cached_property
    def asked_queries(self) -> ElidedQueries:
        """The asked row, the last one: it sees every column."""
        with self._e.scope("elided/asked_queries"):
            return self._queries(self._rows.asked_queries, None, self._e.constant([1]))

    def _queries(
        self, rows: Queries, last_column: gs.Tensor | None, count: gs.Tensor
    ) -> ElidedQueries:
        """`last_column` [1,1,R,1]: the last text column each query sees; None: all."""
        e, decoder = self._e, self._decoder
        real = e.op("Not", e.op("Equal", self.text_mask, e.constant(0), dtype=BOOL))
        text = e.unsqueeze(real, 1, 2)
        if last_column is not None:
            columns = e.unsqueeze(e.arange(self.text_columns), 0, 1, 2)
            earlier = e.op("LessOrEqual", columns, last_column, dtype=BOOL)
            text = e.op("And", text, earlier)
        place = e.unsqueeze(self.sequence, 1, 2)
        visual = e.op("LessOrEqual", place, rows.place, dtype=BOOL)
        mask = e.op(
            "Where",
            e.concat([text, visual], axis=-1),
            e.constant(0.0, FLOAT32),
            e.constant(MASKED, FLOAT32),
            dtype=FLOAT32,
        )
        groups = decoder.num_attention_heads // decoder.num_key_value_heads
        heads, any_width = e.constant([decoder.num_key_value_heads]), e.constant([-1])
        split = [e.constant([groups]), count] if decoder.grouped else [count]
        merged = e.mul(e.constant([groups]), count)
        return ElidedQueries(
            rows=rows,
            mask=e.unsqueeze(mask, 2) if decoder.grouped else mask,
            split_scores=e.concat([self._rows.batch, heads, *split, any_width], axis=0),
            merged_scores=e.concat([self._rows.batch, heads, merged, any_width], axis=0),
        )

    def _rotary_halves(self) -> list[gs.Tensor]:
        """The graph's own cos and sin at the visual positions, the first half of each: [B,V,hd/2].

        The second half repeats the first; where the graph joins the two before it takes the cosine,
        one is enough.
        """
        e, half = self._e, self._decoder.head_dim // 2
        of: dict[int, gs.Tensor] = {id(self._decoder.position_ids): self.positions}
        halved = False
        for node in self._decoder.rotary_nodes:
            inputs = [of.get(id(tensor), tensor) for tensor in node.inputs]
            if node.op == "Concat" and len(inputs) == 2 and inputs[0] is inputs[1]:
                of[id(node.outputs[0])], halved = inputs[0], True
                continue
            for output, copy in zip(node.outputs, e.copy(node, inputs), strict=True):
                of[id(output)] = copy
        both = [of[id(self._decoder.cos)], of[id(self._decoder.sin)]]
        return both if halved else [e.slice(one, 0, half, axis=2) for one in both]
