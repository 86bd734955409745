"""What the three lowerings have in common as passes: what they take, and what must hold after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import onnx_graphsurgeon as gs

from p2p_export.errors import PlanError, RewriteError
from p2p_export.graphs.decoder_parts import SITE_SCOPES, scope_of
from p2p_export.graphs.emit import Emitter
from p2p_export.graphs.index_rows import IndexRows
from p2p_export.graphs.live_nodes import keep_live_nodes
from p2p_export.graphs.locate import locate_decoder
from p2p_export.graphs.passes.graph_pass import GraphPass
from p2p_export.graphs.rows import Rows
from p2p_export.graphs.span_rows import SpanRows
from p2p_export.plan import Plan
from p2p_export.proxies import SITES_NEEDED, ProxySet, tensor_name

Layout = Literal["index", "span"]

LAYOUTS: Mapping[Layout, type[Rows]] = {"index": IndexRows, "span": SpanRows}


class LoweringPass(GraphPass):
    """Write the planned layers of a dense decoder so that they leave the visual rows out.

    1. The graph must be a decoder, not rewritten before, that gives the asked row's logits.
    2. Plan and proxies must fit it: layers that exist, vectors of their sites' widths.
    3. Afterwards all outputs are there and each weight of a planned layer that its mode needs is
       multiplied with; `elided` says more.
    """

    def __init__(self, plan: Plan, proxies: ProxySet, layout: Layout) -> None:
        self.plan, self.proxies, self.layout = plan, proxies, layout

    def requires(self, graph: gs.Graph) -> None:
        self.decoder = locate_decoder(graph)
        if len(self.decoder.logits.shape) != 2:
            raise RewriteError(
                "the graph gives logits of every row; run the pass AskedRow before a lowering"
            )
        self._check_plan_fits()
        self._outputs = [tensor.name for tensor in graph.outputs]

    def call(self, graph: gs.Graph) -> bool:
        if not self.plan.planned:
            return False
        emitter = Emitter(graph, self.decoder.dtype)
        self.lower(graph, emitter, LAYOUTS[self.layout](emitter, self.decoder))
        keep_live_nodes(graph)
        return True

    def lower(self, graph: gs.Graph, emitter: Emitter, rows: Rows) -> None:
        """Write the planned layers; what they replace may stay and is dropped afterwards."""
        raise NotImplementedError

    def ensures(self, graph: gs.Graph) -> None:
        if [tensor.name for tensor in graph.outputs] != self._outputs:
            raise RewriteError("the rewritten graph has other outputs than the dense one")
        multiplied = {scope_of(node) for node in graph.nodes if node.op == "MatMul"}
        for layer in self.plan.planned:
            for path in SITE_SCOPES.values():
                if f"layers.{layer}.{path}" not in multiplied:
                    raise RewriteError(f"layer {layer}: the rewritten graph lost {path}")

    def _check_plan_fits(self) -> None:
        """Raise `PlanError` unless planned layers exist and proxies have the graph's widths."""
        self.plan.check_layers(len(self.decoder.layers))
        for layer in self.plan.planned:
            for site in SITES_NEEDED[self.plan.mode(layer)]:
                vector = self.proxies.vector(layer, site)
                width = self.decoder.site_size(layer, site)
                if vector.shape != (width,):
                    raise PlanError(
                        f"proxy {tensor_name(layer, site)} has shape {list(vector.shape)} and the "
                        f"graph needs [{width}]; use the proxies of this model"
                    )
