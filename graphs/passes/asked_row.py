"""Logits of the last position alone, from a decoder that gives those of every position."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from p2p_export.bindings import LOGITS
from p2p_export.errors import RewriteError
from p2p_export.graphs.decoder_parts import DecoderParts
from p2p_export.graphs.emit import FLOAT32, INT64, Emitter, dtype_of
from p2p_export.graphs.index_rows import IndexRows
from p2p_export.graphs.live_nodes import keep_live_nodes
from p2p_export.graphs.locate import locate_decoder
from p2p_export.graphs.passes.graph_pass import GraphPass
from p2p_export.graphs.planned_layer import LayerWriter
from p2p_export.graphs.region_walk import replace_input

PREFIX = "asked_row."
# What of a head works on each row by itself.
ROW_WISE = frozenset(
    ("Add", "Cast", "Div", "MatMul", "Mul", "Pow", "Reciprocal", "ReduceMean", "Sqrt", "Transpose")
)


class AskedRow(GraphPass):
    """Rows nobody reads are not computed: the last layer and the head run on the asked row.

    1. A graph whose logits are [B,vocab] is left alone.
    2. The last layer is written anew: keys and values of all rows, queries, output projection and
       MLP of the last row.
    3. Norm and head behind it work row by row, so they stay; logits become [B,vocab] float32.
    """

    def __init__(self) -> None:
        self._decoder: DecoderParts | None = None

    def requires(self, graph: gs.Graph) -> None:
        """A decoder of our form, with nothing behind its last layer but work on single rows."""
        logits = next((t for t in graph.outputs if t.name == LOGITS), None)
        if logits is None or logits.shape is None or len(logits.shape) != 3:
            return
        self._decoder = locate_decoder(graph)
        last = self._decoder.layers[-1]
        self._head = list(_downstream(last.exit))
        for node in self._head:
            if node.op not in ROW_WISE:
                raise RewriteError(
                    f"behind layer {last.index}, node {node.name} ({node.op}) may mix rows; export "
                    "the decoder with its plain head"
                )

    def call(self, graph: gs.Graph) -> bool:
        decoder = self._decoder
        if decoder is None:
            return False
        emitter = Emitter(graph, decoder.dtype, prefix=PREFIX, mark="a")
        rows = IndexRows(emitter, decoder)
        write = LayerWriter(emitter, decoder, rows)
        last = decoder.layers[-1]
        readers = list(last.exit.outputs)
        normed = write.input_norm(last, last.entry)
        write.cache(last, write.linear(last, "k", normed), write.linear(last, "v", normed))
        mixed = write.attention(last, rows.asked_of(normed), rows.asked_queries)
        with emitter.scope(f"layers.{last.index}"):
            added = emitter.add(rows.asked_of(last.entry), mixed)
            replace_input(readers, last.exit, write.mlp(last, added))
        for node in self._head:
            for tensor in node.outputs:
                tensor.shape = None if tensor is not decoder.logits else tensor.shape
        _squeeze_logits(graph, decoder.logits, emitter)
        keep_live_nodes(graph)
        return True

    def ensures(self, graph: gs.Graph) -> None:
        """It is a decoder still, and its last layer multiplies single rows."""
        last = locate_decoder(graph).layers[-1]
        if last.linears["k"].rows is last.linears["q"].rows:
            raise RewriteError(f"layer {last.index} still computes the queries of every row")


def _downstream(tensor: gs.Tensor) -> Iterator[gs.Node]:
    """Every node that depends on `tensor`, each once."""
    waiting, seen = list(tensor.outputs), set()
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(reader for output in node.outputs for reader in output.outputs)


def _squeeze_logits(graph: gs.Graph, logits: gs.Tensor, emitter: Emitter) -> None:
    """[B,1,vocab] -> `logits` [B,vocab] float32."""
    full = gs.Variable(f"{PREFIX}logits", dtype=dtype_of(logits))
    [producer] = logits.inputs
    producer.outputs = [full]
    shape = [logits.shape[0], logits.shape[2]]
    with emitter.scope("lm_head"):
        squeezed = emitter.wide(emitter.op("Squeeze", full, emitter.constant([1], INT64)))
    asked = gs.Variable(LOGITS, dtype=FLOAT32, shape=shape)
    squeezed.inputs[0].outputs = [asked]
    graph.outputs = [asked if tensor is logits else tensor for tensor in graph.outputs]
