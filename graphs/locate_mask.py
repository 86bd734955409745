"""The attention mask of a graph: it must be causal in the sequence's order, and leave padding out.

The rewrite writes such a mask anew for the rows it keeps, so a graph whose own says more (a sliding
window, causality by position ids, a bias) is refused.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from p2p_export.errors import RewriteError
from p2p_export.graphs.node_pattern import upstream

COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
# What may stand between a mask and the inputs it is made of.
MASK_OPS = frozenset(
    (
        *COMPARISONS,
        *("Add", "And", "Cast", "Concat", "Constant", "Equal", "Expand", "Gather", "GatherND"),
        *("Max", "Not", "Range", "Reshape", "Shape", "Slice", "Squeeze", "Sub", "Unsqueeze"),
        "Where",
    )
)


def check_mask(layer: int, mask: gs.Tensor, attention_mask: gs.Tensor) -> None:
    """Raise `RewriteError` unless `mask` comes from `attention_mask` and one order of rows."""
    nodes = list(upstream(mask, stop="Shape"))
    for node in nodes:
        if node.op not in MASK_OPS:
            raise _refusal(layer, node, f"computes it with {node.op}")
        for tensor in node.inputs:
            read = isinstance(tensor, gs.Variable) and not tensor.inputs and not tensor.is_empty()
            if read and node.op != "Shape" and tensor is not attention_mask:
                raise _refusal(layer, node, f"reads {tensor.name}")
    compared = [node for node in nodes if node.op in COMPARISONS]
    if len(compared) != 1 or compared[0].op not in ("LessOrEqual", "GreaterOrEqual"):
        ops = ", ".join(node.op for node in compared) or "nothing"
        raise _refusal(layer, compared[-1] if compared else nodes[-1], f"compares places by {ops}")
    if not any(tensor is attention_mask for node in nodes for tensor in node.inputs):
        raise _refusal(layer, nodes[-1], "leaves padding in")


def _refusal(layer: int, node: gs.Node, reason: str) -> RewriteError:
    return RewriteError(
        f"layer {layer}: the attention mask is not causal order and padding alone (node "
        f"{node.name} {reason}); export the decoder with full causal attention"
    )
