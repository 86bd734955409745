"""ONNX Runtime's RotaryEmbedding in the place of the five nodes that spell a rotation out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from p2p_export.graphs.emit import FLOAT32, Emitter
from p2p_export.graphs.node_pattern import only_other, produced_by

DOMAIN = "com.microsoft"
PREFIX = "onnxruntime"


@dataclass(frozen=True)
class Rotation:
    """heads·cos + (−second half, first half)·sin, and the Add it ends in."""

    heads: gs.Tensor
    cos: gs.Tensor
    sin: gs.Tensor
    end: gs.Node


def fuse_rotations(graph: gs.Graph) -> int:
    """Rewrite every rotation of `graph` in place; returns how many there were.

    A rotation whose tables are not float32 of four dimensions stays as it is.
    """
    rotations = [found for node in graph.nodes if (found := _rotation(node)) is not None]
    tables = _Tables(graph)
    for rotation in rotations:
        _fuse(graph, rotation, tables)
    return len(rotations)


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


def _rotation(end: gs.Node) -> Rotation | None:
    """The rotation that ends in this node, if one does."""
    if end.op != "Add" or len(end.inputs) != 2:
        return None
    products = [produced_by(tensor, "Mul") for tensor in end.inputs]
    for straight, crossed in (products, products[::-1]):
        if straight is None or crossed is None:
            return None
        turned = next((t for t in crossed.inputs if _turned_from(t) is not None), None)
        if turned is None:
            continue
        heads = _turned_from(turned)
        cos, sin = only_other(straight, heads), only_other(crossed, turned)
        if cos is not None and sin is not None and _is_table(cos) and _is_table(sin):
            assert heads is not None
            return Rotation(heads, cos, sin, end)
    return None


def _turned_from(tensor: gs.Tensor) -> gs.Tensor | None:
    """x, where `tensor` is (−second half of x, first half of x) joined on the last axis."""
    joined = produced_by(tensor, "Concat")
    if joined is None or len(joined.inputs) != 2:
        return None
    negated = produced_by(joined.inputs[0], "Neg")
    first = produced_by(joined.inputs[1], "Slice")
    second = None if negated is None else produced_by(negated.inputs[0], "Slice")
    if first is None or second is None or first.inputs[0] is not second.inputs[0]:
        return None
    halves = (_bounds(first), _bounds(second))
    if None in halves or halves[0][0] != 0 or halves[0][1] != halves[1][0]:  # type: ignore[index]
        return None
    return first.inputs[0]


def _bounds(cut: gs.Node) -> tuple[int, int] | None:
    """Start and end of a Slice with constant bounds."""
    if not all(isinstance(tensor, gs.Constant) for tensor in cut.inputs[1:3]):
        return None
    start, end = (int(tensor.values.reshape(-1)[0]) for tensor in cut.inputs[1:3])
    return start, end


def _is_table(tensor: gs.Tensor) -> bool:
    """[B,1,S,head_dim] float32: what an Unsqueeze of the second axis made."""
    made = produced_by(tensor, "Unsqueeze")
    return made is not None and tensor.dtype == FLOAT32
