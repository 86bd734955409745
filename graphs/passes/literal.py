"""The `literal` lowering: the method as it is told, and the reference for the other two.

At every replaced site the text rows alone are multiplied, and the proxy stands at the visual rows'
places. Nothing else changes: sequence length, cache and attention are the dense graph's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from p2p_export.graphs.decoder_parts import SITE_SCOPES, LayerParts
from p2p_export.graphs.emit import Emitter
from p2p_export.graphs.passes.lowering import LoweringPass
from p2p_export.graphs.planned_layer import KEY_VALUE
from p2p_export.graphs.region_walk import replace_input
from p2p_export.graphs.rows import Rows
from p2p_export.proxies import SITES_REPLACED, ProxySet, Site, tensor_name


class LiteralLowering(LoweringPass):
    """Every replaced site of a planned layer, one by one.

    1. The text rows are multiplied; the proxy stands at the visual rows' places.
    2. In the last layer, which computes the asked row alone, the proxy stands there where that row
       is visual.
    """

    def lower(self, graph: gs.Graph, emitter: Emitter, rows: Rows) -> None:
        for layer in self.decoder.layers:
            is_last = layer.index == len(self.decoder.layers) - 1
            for site in SITES_REPLACED[self.plan.mode(layer.index)]:
                name = tensor_name(layer.index, site)
                vector = emitter.vector(name, _vector(self.proxies, layer, site))
                with emitter.scope(f"layers.{layer.index}.{SITE_SCOPES[site]}"):
                    users = list(layer.linears[site].output.outputs)
                    if is_last and site not in KEY_VALUE:
                        replaced = _asked(layer, site, vector, emitter, rows)
                    else:
                        replaced = _merged(layer, site, vector, emitter, rows)
                replace_input(users, layer.linears[site].output, replaced)
        graph.inputs += rows.inputs


def _merged(
    layer: LayerParts, site: Site, vector: gs.Tensor, emitter: Emitter, rows: Rows
) -> gs.Tensor:
    """[B,S,out]: the product of the text rows, the proxy elsewhere."""
    linear = layer.linears[site]
    text = rows.text_of(linear.rows, linear.in_features)
    product = emitter.matmul(text, linear.weight)
    if linear.bias is not None:
        product = emitter.add(product, linear.bias)
    return rows.merge_constant(product, vector, linear.out_features)


def _asked(
    layer: LayerParts, site: Site, vector: gs.Tensor, emitter: Emitter, rows: Rows
) -> gs.Tensor:
    """[B,1,out]: the last layer computes the asked row alone, which may be visual."""
    output = layer.linears[site].output
    return emitter.op("Where", rows.asked_is_visual, vector, output, dtype=emitter.dtype)


def _vector(proxies: ProxySet, layer: LayerParts, site: Site) -> npt.NDArray[np.float32]:
    """The proxy, or zeros for a site whose patched output nobody reads (DESIGN §2)."""
    if site in ("q", "gate", "up") and tensor_name(layer.index, site) not in proxies.tensors:
        return np.zeros(layer.linears[site].out_features, np.float32)
    return proxies.vector(layer.index, site)
