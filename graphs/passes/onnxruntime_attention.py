"""ONNX Runtime's MultiHeadAttention in the place of attention spelled out.

It takes rows as the projections leave them and appends to the cache itself: no transposes, no
copies between nodes. Grouped-query attention stays spelled out, where the queries of a group share
one product (docs/graphs.md says what was measured), and so does attention in half precision, whose
mask and softmax are float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from p2p_export.errors import RewriteError
from p2p_export.graphs.emit import FLOAT32, dtype_of
from p2p_export.graphs.node_pattern import attribute_is, only_other, produced_by, read_by
from p2p_export.graphs.passes.graph_pass import GraphPass
from p2p_export.graphs.passes.onnxruntime_rotary import DOMAIN

HEADS_FIRST = [0, 2, 1, 3]


@dataclass(frozen=True)
class Rotated:
    """Rows [B,R,heads*head_dim] and the RotaryEmbedding that turns them, heads first."""

    rows: gs.Tensor
    rotation: gs.Node


@dataclass(frozen=True)
class Attention:
    """softmax(query·keysᵀ·scale + mask)·values over past and present, merged to rows at `end`."""

    query: Rotated
    key: Rotated
    value: gs.Tensor
    past: tuple[gs.Tensor, gs.Tensor]
    present: tuple[gs.Tensor, gs.Tensor]
    mask: gs.Tensor
    scale: float
    heads: int
    end: gs.Node


class OnnxRuntimeAttention(GraphPass):
    """Attention whose rotations are fused already becomes one node.

    1. Only where every part is known and heads are not grouped; all else stays as it is.
    2. The node's rows, cache and mask are those of the nodes it replaces.
    3. Afterwards `fused` says how many there were, and each cache it appends to has one producer.
    """

    fused = 0

    def call(self, graph: gs.Graph) -> bool:
        found = [one for node in graph.nodes if (one := _attention(node)) is not None]
        for attention in found:
            _fuse(graph, attention)
        self.fused = len(found)
        return self.fused > 0

    def ensures(self, graph: gs.Graph) -> None:
        for tensor in graph.outputs:
            if len(tensor.inputs) != 1:
                raise RewriteError(f"{tensor.name} is made by {len(tensor.inputs)} nodes, not 1")


def _fuse(graph: gs.Graph, attention: Attention) -> None:
    absent = gs.Variable.empty()
    [output] = attention.end.outputs
    name = f"{attention.end.name}.MultiHeadAttention"
    query = _rotate_rows(graph, attention.query, attention.heads)
    key = _rotate_rows(graph, attention.key, attention.heads)
    for tensor in (output, *attention.present):
        tensor.inputs.clear()
    node = gs.Node(
        "MultiHeadAttention",
        name,
        {"num_heads": attention.heads, "scale": attention.scale},
        [query, key, attention.value, absent, absent, attention.mask, *attention.past],
        [output, *attention.present],
    )
    node.domain = DOMAIN
    graph.nodes.append(node)


def _rotate_rows(graph: gs.Graph, rotated: Rotated, heads: int) -> gs.Tensor:
    """The same rotation on rows, before heads are split."""
    name = f"{rotated.rotation.name}.rows"
    output = gs.Variable(name, dtype=dtype_of(rotated.rows))
    inputs = [rotated.rows, *rotated.rotation.inputs[1:]]
    node = gs.Node(
        "RotaryEmbedding", name, {"interleaved": 0, "num_heads": heads}, inputs, [output]
    )
    node.domain = DOMAIN
    graph.nodes.append(node)
    return output


def _attention(softmax: gs.Node) -> Attention | None:
    """The attention around this node, if it is one whose every part we know."""
    masked = produced_by(softmax.inputs[0], "Add") if softmax.op == "Softmax" else None
    if masked is None or dtype_of(softmax.inputs[0]) != FLOAT32:
        return None
    product = next((n for t in masked.inputs if (n := produced_by(t, "MatMul")) is not None), None)
    mix = read_by(softmax.outputs[0], "MatMul")
    if product is None or mix is None or mix.inputs[0] is not softmax.outputs[0]:
        return None
    mask = only_other(masked, product.outputs[0])
    scaled = produced_by(product.inputs[0], "Mul")
    turned = produced_by(product.inputs[1], "Transpose")
    end = _merging_end(mix.outputs[0])
    if scaled is None or turned is None or end is None or mask is None:
        return None
    if not attribute_is(turned, "perm", [0, 1, 3, 2]):
        return None
    keys, values = turned.inputs[0], mix.inputs[1]
    scale = next((t for t in scaled.inputs if isinstance(t, gs.Constant)), None)
    appended = (_appended(keys), _appended(values))
    if scale is None or scale.values.size != 1 or None in appended:
        return None
    (past_key, new_key), (past_value, new_value) = appended  # type: ignore[misc]
    rotated = only_other(scaled, scale)
    query = None if rotated is None else _rotated(rotated)
    key, value = _rotated(new_key), _split_rows(new_value)
    if query is None or key is None or value is None:
        return None
    return Attention(
        query=query,
        key=key,
        value=value,
        past=(past_key, past_value),
        present=(keys, values),
        mask=mask,
        scale=float(scale.values.reshape(-1)[0]),
        heads=int(past_key.shape[1]),
        end=end,
    )


def _appended(cache: gs.Tensor) -> tuple[gs.Tensor, gs.Tensor] | None:
    """What is joined to the cache: the past, an input of the graph, and what is new."""
    joined = produced_by(cache, "Concat")
    if joined is None or len(joined.inputs) != 2 or not attribute_is(joined, "axis", 2):
        return None
    past, new = joined.inputs
    return None if past.inputs else (past, new)


def _rotated(heads: gs.Tensor) -> Rotated | None:
    rotation = produced_by(heads, "RotaryEmbedding")
    rows = None if rotation is None else _split_rows(rotation.inputs[0])
    return None if rotation is None or rows is None else Rotated(rows, rotation)


def _split_rows(heads: gs.Tensor) -> gs.Tensor | None:
    """Rows [B,R,heads*head_dim], where `heads` is what they are split into, heads first."""
    first = produced_by(heads, "Transpose")
    if first is None or not attribute_is(first, "perm", HEADS_FIRST):
        return None
    split = produced_by(first.inputs[0], "Reshape")
    return None if split is None else split.inputs[0]


def _merging_end(mixed: gs.Tensor) -> gs.Node | None:
    """The Reshape that makes rows of `mixed` [B,heads,R,head_dim]."""
    last = read_by(mixed, "Transpose")
    if last is None or not attribute_is(last, "perm", HEADS_FIRST):
        return None
    return read_by(last.outputs[0], "Reshape")
