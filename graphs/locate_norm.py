"""An RMSNorm in a decoder's graph: rows / √(mean of squares + epsilon), times a weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from p2p_export.errors import RewriteError
from p2p_export.graphs.decoder_parts import Norm
from p2p_export.graphs.node_pattern import behind, only_other, produced_by, scalar_of


def locate_norm(layer: int, scope: str, scopes: Mapping[str, Sequence[gs.Node]]) -> Norm:
    """The norm of `scope`; `RewriteError` when its nodes compute anything else."""
    nodes = scopes.get(scope, ())
    if not nodes:
        raise RewriteError(
            f"layer {layer}: no node has the scope {scope}; export the decoder with p2p-export, or "
            "with an exporter that keeps module names"
        )
    found = [norm for node in nodes if (norm := _norm(node)) is not None]
    if len(found) != 1:
        raise RewriteError(
            f"layer {layer}: {scope} ({', '.join(node.op for node in nodes)}) is not an RMSNorm "
            "with one weight and one epsilon; such a norm cannot be rewritten"
        )
    return found[0]


def _norm(end: gs.Node) -> Norm | None:
    """The norm whose last node, the product with the weight, is `end`."""
    weights = [t for t in end.inputs if isinstance(t, gs.Constant) and np.prod(t.shape) > 1]
    if end.op != "Mul" or len(weights) != 1:
        return None
    normed = only_other(end, weights[0])
    scaled = None if normed is None else behind(normed, "Cast")
    divided = None if scaled is None else _divided(scaled)
    if divided is None:
        return None
    wide, root = divided
    sum_node = produced_by(root, "Add")
    eps = None if sum_node is None else scalar_of(sum_node)
    if sum_node is None or eps is None:
        return None
    means = [node for tensor in sum_node.inputs if (node := produced_by(tensor, "ReduceMean"))]
    if len(means) != 1 or not _is_mean_of_squares(means[0], wide):
        return None
    return Norm(weights[0], eps, behind(wide, "Cast"), end.outputs[0])


def _divided(scaled: gs.Tensor) -> tuple[gs.Tensor, gs.Tensor] | None:
    """x and y, where `scaled` is x / √y or x · (1 / √y)."""
    division, product = produced_by(scaled, "Div"), produced_by(scaled, "Mul")
    if division is not None:
        root = produced_by(division.inputs[1], "Sqrt")
        return None if root is None else (division.inputs[0], root.inputs[0])
    for tensor in product.inputs if product is not None else ():
        inverse = produced_by(tensor, "Reciprocal")
        root = None if inverse is None else produced_by(inverse.inputs[0], "Sqrt")
        wide = only_other(product, tensor)
        if root is not None and wide is not None:
            return wide, root.inputs[0]
    return None


def _is_mean_of_squares(mean: gs.Node, wide: gs.Tensor) -> bool:
    axes = mean.inputs[1].values if len(mean.inputs) > 1 else mean.attrs.get("axes")
    square = produced_by(mean.inputs[0], "Pow")
    return (
        axes is not None
        and np.asarray(axes).reshape(-1).tolist() in ([-1], [2])
        and square is not None
        and square.inputs[0] is wide
        and scalar_of(square) == 2.0
    )
