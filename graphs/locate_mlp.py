"""The gated MLP of a decoder layer: down(silu(gate)·up)."""

from __future__ import annotations

from collections.abc import Mapping

from p2p_export.errors import RewriteError
from p2p_export.graphs.decoder_parts import Linear
from p2p_export.graphs.node_pattern import only_other, produced_by
from p2p_export.proxies import Site


def check_mlp(layer: int, linears: Mapping[Site, Linear]) -> None:
    """Raise `RewriteError` unless down_proj multiplies silu(gate_proj)·up_proj."""
    gate, up, down = (linears[site] for site in ("gate", "up", "down"))
    product = produced_by(down.rows, "Mul")
    activated = None if product is None else only_other(product, up.output)
    silu = None if activated is None else produced_by(activated, "Mul")
    sigmoid = None if silu is None else only_other(silu, gate.output)
    node = None if sigmoid is None else produced_by(sigmoid, "Sigmoid")
    if node is None or node.inputs[0] is not gate.output:
        made = down.rows.inputs[0].name if down.rows.inputs else down.rows.name
        raise RewriteError(
            f"layer {layer}, node {made}: what down_proj multiplies is not silu(gate)·up; another "
            "MLP cannot be rewritten"
        )
