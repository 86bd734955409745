"""A linear in a decoder's graph: one MatMul with a weight, and an Add where it has a bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_graphsurgeon as gs

from p2p_export.errors import RewriteError
from p2p_export.graphs.decoder_parts import Linear
from p2p_export.graphs.node_pattern import only_other


def locate_linear(layer: int, scope: str, scopes: Mapping[str, Sequence[gs.Node]]) -> Linear:
    """The linear of `scope`; `RewriteError` when its nodes compute anything else."""
    nodes = scopes.get(scope, ())
    products = [node for node in nodes if node.op == "MatMul"]
    if len(products) != 1:
        raise RewriteError(
            f"layer {layer}: {len(products)} MatMul have the scope {scope}, not 1; export the "
            "decoder with plain linear layers"
        )
    [product] = products
    rows, weight = product.inputs
    inside, outside = _features(layer, product)
    bias, output = None, product.outputs[0]
    for node in nodes:
        if node is product or node.op == "Transpose":
            continue
        bias = only_other(node, output) if node.op == "Add" and bias is None else None
        if not isinstance(bias, gs.Constant):
            raise RewriteError(
                f"layer {layer}: {node.name} ({node.op}) is in {scope} and is neither its product "
                "nor its bias; export the decoder with plain linear layers"
            )
        output = node.outputs[0]
    return Linear(weight, bias, rows, output, inside, outside)


def _features(layer: int, product: gs.Node) -> tuple[int, int]:
    """Sizes in and out of a MatMul, from its weight [in,out] or the Transpose of [out,in]."""
    weight = product.inputs[1]
    if isinstance(weight, gs.Constant):
        return int(weight.shape[-2]), int(weight.shape[-1])
    if weight.inputs and weight.inputs[0].op == "Transpose":
        stored = weight.inputs[0].inputs[0].shape
        return int(stored[1]), int(stored[0])
    raise RewriteError(
        f"layer {layer}: {product.name} multiplies with something not a weight; export the decoder "
        "without quantization or adapters"
    )
