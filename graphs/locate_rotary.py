"""Rotary embeddings in a graph: the rotation of heads, and where its cos and sin come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from p2p_export.errors import RewriteError
from p2p_export.graphs.node_pattern import only_other, produced_by, upstream


@dataclass(frozen=True)
class Rotation:
    """heads·cos + (−second half, first half)·sin, and the Add it ends in."""

    heads: gs.Tensor
    cos: gs.Tensor
    sin: gs.Tensor
    end: gs.Node


def rotation_ending_in(end: gs.Node) -> Rotation | None:
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
        if heads is not None and cos is not None and sin is not None:
            return Rotation(heads, cos, sin, end)
    return None


def rotary_nodes(
    nodes: Sequence[gs.Node], cos: gs.Tensor, sin: gs.Tensor, position_ids: gs.Tensor
) -> tuple[gs.Node, ...]:
    """The nodes that compute `cos` and `sin` from `position_ids`, in the order of `nodes`.

    Raises `RewriteError` when they need more than positions, or when the second half of each table
    does not repeat the first.
    """
    above = list(upstream(cos, sin))
    found = {id(node) for node in above if _depends_on(node, position_ids)}
    for node in above:
        for tensor in node.inputs:
            foreign = isinstance(tensor, gs.Variable) and not tensor.inputs
            if foreign and not tensor.is_empty() and tensor is not position_ids:
                raise RewriteError(
                    f"RoPE reads {tensor.name} (node {node.name}), and we rewrite decoders whose "
                    "cos and sin depend on position_ids alone; export with a RoPE of fixed "
                    "frequencies"
                )
    if not any(_repeats(node) for node in above if id(node) in found):
        raise RewriteError(
            f"the halves of {cos.name} are not the same by construction, so RoPE is of a form we "
            "do not rewrite; export a decoder that turns the two halves of a head"
        )
    return tuple(node for node in nodes if id(node) in found)


def _repeats(node: gs.Node) -> bool:
    return node.op == "Concat" and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]


def _depends_on(node: gs.Node, source: gs.Tensor) -> bool:
    if any(tensor is source for tensor in node.inputs):
        return True
    above = (other for tensor in node.inputs for other in upstream(tensor))
    return any(tensor is source for other in above for tensor in other.inputs)


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
