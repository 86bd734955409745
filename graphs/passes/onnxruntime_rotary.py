"""ONNX Runtime's RotaryEmbedding in the place of the five nodes that spell a rotation out."""

from __future__ import annotations

import itertools

import onnx_graphsurgeon as gs

from p2p_export.errors import RewriteError
from p2p_export.graphs.emit import FLOAT32, Emitter
from p2p_export.graphs.locate_rotary import Rotation, rotation_ending_in
from p2p_export.graphs.node_pattern import produced_by
from p2p_export.graphs.passes.graph_pass import GraphPass

DOMAIN = "com.microsoft"
PREFIX = "onnxruntime"


class OnnxRuntimeRotary(GraphPass):
    """Every rotation of the graph becomes one node.

    1. A rotation whose tables are not float32, [B,1,S,head_dim], stays as it is.
    2. The operator's tables are made once for each pair of cos and sin.
    3. Afterwards `fused` says how many there were, and none that could be fused is left.
    """

    fused = 0

    def call(self, graph: gs.Graph) -> bool:
        rotations = _rotations(graph)
        tables = _Tables(graph)
        for rotation in rotations:
            _fuse(graph, rotation, tables)
        self.fused = len(rotations)
        return self.fused > 0

    def ensures(self, graph: gs.Graph) -> None:
        left = _rotations(graph)
        if left:
            raise RewriteError(f"{left[0].end.name} is a rotation still")


class _Tables:
    """The operator reads its tables by row number: [B*S, head_dim/2], row b*S + s for (b, s)."""

    def __init__(self, graph: gs.Graph) -> None:
        # A graph that was fused and then rewritten holds tables of the first time.
        taken = list(graph.tensors())
        passes = itertools.count()
        self._scope = next(
            scope
            for scope in (f"{PREFIX}.{number}" for number in passes)
            if not any(name.startswith(f"{scope}.") for name in taken)
        )
        self._e = Emitter(graph, FLOAT32, prefix=f"{self._scope}.")
        self._made: dict[tuple[int, int], tuple[gs.Tensor, gs.Tensor, gs.Tensor]] = {}

    def of(self, cos: gs.Tensor, sin: gs.Tensor) -> tuple[gs.Tensor, gs.Tensor, gs.Tensor]:
        """Row numbers [B,S] and both tables, of `cos` and `sin` [B,1,S,head_dim]."""
        key = (id(cos), id(sin))
        if key not in self._made:
            self._made[key] = self._make(cos, sin)
        return self._made[key]

    def _make(self, cos: gs.Tensor, sin: gs.Tensor) -> tuple[gs.Tensor, gs.Tensor, gs.Tensor]:
        e = self._e
        with e.scope(f"{self._scope}.rotary_emb"):
            size = e.dimension(cos, 3)
            half = e.op("Div", size, e.constant([2]))
            shape = e.concat([e.constant([-1]), half], axis=0)
            tables = [e.reshape(e.slice(one, 0, half, axis=3), shape) for one in (cos, sin)]
            batch, rows = e.dimension(cos, 0), e.dimension(cos, 2)
            numbers = e.arange(e.mul(batch, rows))
            return e.reshape(numbers, e.concat([batch, rows], axis=0)), tables[0], tables[1]


def _fuse(graph: gs.Graph, rotation: Rotation, tables: _Tables) -> None:
    numbers, cos, sin = tables.of(rotation.cos, rotation.sin)
    [output] = rotation.end.outputs
    rotation.end.outputs.clear()
    name = f"{rotation.end.name}.RotaryEmbedding"
    node = gs.Node("RotaryEmbedding", name, {"interleaved": 0}, [rotation.heads, numbers, cos, sin])
    node.domain = DOMAIN
    node.outputs = [output]
    graph.nodes.append(node)


def _rotations(graph: gs.Graph) -> list[Rotation]:
    found = [rotation_ending_in(node) for node in graph.nodes if node.outputs]
    return [one for one in found if one is not None and _is_table(one.cos) and _is_table(one.sin)]


def _is_table(tensor: gs.Tensor) -> bool:
    """[B,1,S,head_dim] float32: what an Unsqueeze of the second axis made."""
    made = produced_by(tensor, "Unsqueeze")
    return made is not None and tensor.dtype == FLOAT32
