"""Attention in a decoder layer: followed from its output back to its projections and cache.

What a lowering writes in its place is softmax(RoPE(q)·RoPE(k)ᵀ/√head_dim + mask)·v over past and
present, so every node on the way is looked at, and anything else is refused by name: other scales,
norms on queries or keys, soft caps, other masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose

import onnx_graphsurgeon as gs

from p2p_export.errors import RewriteError
from p2p_export.graphs.decoder_parts import Attention, Linear
from p2p_export.graphs.locate_rotary import rotation_ending_in
from p2p_export.graphs.node_pattern import (
    ROW_OPS,
    attribute_is,
    behind,
    only_other,
    produced_by,
    scalar_of,
)
from p2p_export.proxies import Site

HEADS_FIRST = [0, 2, 1, 3]
# A scale that was rounded to float16 is as far off as this.
SCALE_TOLERANCE = 1e-3


@dataclass(frozen=True)
class AttentionPlace:
    """What is known of a layer before its attention is looked at."""

    layer: int
    linears: Mapping[Site, Linear]
    past: tuple[gs.Tensor, gs.Tensor]
    present: tuple[gs.Tensor, gs.Tensor]
    head_dim: int

    def node(self, tensor: gs.Tensor, op: str, what: str) -> gs.Node:
        """The `op` that makes `tensor`, or a refusal."""
        found = produced_by(tensor, op)
        if found is None:
            raise self.refusal(tensor, f"{what} is made by {_maker(tensor)} and not by {op}")
        return found

    def refusal(self, tensor: gs.Tensor, reason: str) -> RewriteError:
        name = tensor.inputs[0].name if tensor.inputs else tensor.name
        return RewriteError(
            f"layer {self.layer}, node {name}: {reason}; attention of another form than "
            "softmax(q·kᵀ/√head_dim + mask)·v cannot be rewritten"
        )


def locate_attention(place: AttentionPlace) -> Attention:
    """The attention that ends in the rows of the output projection."""
    one = produced_by(place.linears["o"].rows, "MultiHeadAttention")
    return _spelled_out(place) if one is None else _one_operator(place, one)


def _spelled_out(place: AttentionPlace) -> Attention:
    merged = place.node(place.linears["o"].rows, "Reshape", "what o_proj multiplies")
    heads = place.node(merged.inputs[0], "Transpose", "what o_proj multiplies")
    mix = place.node(behind(heads.inputs[0], "Reshape"), "MatMul", "the mixed values")
    if not attribute_is(heads, "perm", HEADS_FIRST):
        raise place.refusal(heads.outputs[0], f"heads are merged by {heads.attrs.get('perm')}")
    softmax = place.node(behind(mix.inputs[0], "Reshape", "Cast"), "Softmax", "the weights")
    masked = place.node(behind(softmax.inputs[0], "Cast"), "Add", "what softmax reads")
    scores = next((t for t in masked.inputs if _product_behind(t) is not None), None)
    mask = only_other(masked, scores)
    if scores is None or mask is None:
        raise place.refusal(masked.outputs[0], "softmax does not read scores plus a mask")
    product, scale = _scaled_product(place, scores)
    turned = place.node(product.inputs[1], "Transpose", "the second factor of the scores")
    _check_is_cache(place, turned.inputs[0], place.present[0], "the keys")
    _check_is_cache(place, mix.inputs[1], place.present[1], "the values")
    query, more = _unscaled(place, product.inputs[0])
    _check_scale(place, product.outputs[0], scale * more)
    cos, sin = _check_cache_grows(place)
    for one, table in zip(_check_rotated(place, query, "q"), (cos, sin), strict=True):
        if one is not table:
            raise place.refusal(one, "queries and keys are rotated by different tables")
    return Attention(cos, sin, mask)


def _one_operator(place: AttentionPlace, node: gs.Node) -> Attention:
    """ONNX Runtime's MultiHeadAttention, which an export for it says."""
    query, key, value, mask, *past = (node.inputs[i] for i in (0, 1, 2, 5, 6, 7))
    if value is not place.linears["v"].output or any(
        found is not wanted
        for found, wanted in zip((*past, *node.outputs[1:]), (*place.past, *place.present),
                                 strict=True)
    ):  # fmt: skip
        raise place.refusal(node.outputs[0], "it does not append to this layer's cache")
    _check_scale(place, node.outputs[0], float(node.attrs["scale"]))
    cos, sin = _check_rotated(place, key, "k")
    _check_rotated(place, query, "q")
    return Attention(cos, sin, mask)


def _check_cache_grows(place: AttentionPlace) -> tuple[gs.Tensor, gs.Tensor]:
    """Past and this call's keys and values are joined; returns the tables that turn the keys."""
    new = []
    for past, present in zip(place.past, place.present, strict=True):
        joined = place.node(present, "Concat", f"{present.name}")
        if len(joined.inputs) != 2 or joined.inputs[0] is not past or (
            joined.attrs.get("axis") not in (2, -2)
        ):  # fmt: skip
            raise place.refusal(present, f"it is not {past.name} and this call's rows")
        new.append(joined.inputs[1])
    if behind(new[1], "Transpose", "Reshape") is not place.linears["v"].output:
        raise place.refusal(new[1], "cached values are not what v_proj gives")
    return _check_rotated(place, new[0], "k")


def _check_rotated(place: AttentionPlace, tensor: gs.Tensor, site: Site) -> tuple[gs.Tensor, ...]:
    """`tensor` is the projection of `site`, rotated; returns cos and sin, [B,S,head_dim]."""
    end = behind(tensor, "Cast").inputs
    rotation = rotation_ending_in(end[0]) if end else None
    if rotation is not None:
        heads, tables = rotation.heads, (rotation.cos, rotation.sin)
    elif end and end[0].op == "RotaryEmbedding":
        heads, tables = end[0].inputs[0], tuple(end[0].inputs[2:4])
    else:
        raise place.refusal(
            tensor, f"{site}_proj's output goes through {_maker(tensor)} and not RoPE alone"
        )
    if behind(heads, "Cast", "Transpose", "Reshape") is not place.linears[site].output:
        raise place.refusal(heads, f"what RoPE turns is not {site}_proj's output")
    return tuple(behind(table, "Reshape", *ROW_OPS) for table in tables)


def _check_is_cache(
    place: AttentionPlace, tensor: gs.Tensor, present: gs.Tensor, what: str
) -> None:
    """`tensor` is `present`, its heads repeated for the query heads of their group or not."""
    found = behind(tensor, "Reshape", "Expand")
    grown = produced_by(found, "Unsqueeze")
    if grown is not None and scalar_of(grown) == 2:
        found = grown.inputs[0]
    if found is not present:
        raise place.refusal(tensor, f"{what} are not {present.name}")


def _product_behind(tensor: gs.Tensor) -> gs.Node | None:
    return produced_by(behind(tensor, "Reshape", "Cast", "Mul"), "MatMul")


def _scaled_product(place: AttentionPlace, scores: gs.Tensor) -> tuple[gs.Node, float]:
    """The product of queries and keys, and what it is multiplied with."""
    tensor, scale = _unscaled(place, scores)
    return place.node(tensor, "MatMul", "the scores"), scale


def _unscaled(place: AttentionPlace, tensor: gs.Tensor) -> tuple[gs.Tensor, float]:
    """`tensor` before reshapes, casts and products with a number, and the product of those."""
    scale = 1.0
    tensor = behind(tensor, "Reshape", "Cast")
    while (scaled := produced_by(tensor, "Mul")) is not None:
        factor = scalar_of(scaled)
        if factor is None:
            raise place.refusal(tensor, "queries or scores are multiplied with more than a number")
        constant = next(t for t in scaled.inputs if isinstance(t, gs.Constant))
        [other] = [t for t in scaled.inputs if t is not constant]
        scale *= factor
        tensor = behind(other, "Reshape", "Cast")
    return tensor, scale


def _check_scale(place: AttentionPlace, tensor: gs.Tensor, scale: float) -> None:
    if not isclose(scale, place.head_dim**-0.5, rel_tol=SCALE_TOLERANCE):
        raise place.refusal(
            tensor, f"scores are scaled by {scale:.6g} and not by {place.head_dim**-0.5:.6g}"
        )


def _maker(tensor: gs.Tensor) -> str:
    return str(tensor.inputs[0].op) if tensor.inputs else "no node"
