"""The `fused` lowering: `proxy` layers keep keys RoPE(µ_k, position) and values µ_v (DESIGN §2)."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from p2p_export.graphs.decoder_parts import LayerParts
from p2p_export.graphs.emit import Emitter
from p2p_export.graphs.passes.lowering import LoweringPass
from p2p_export.graphs.planned_layer import KEY_VALUE, LayerWriter
from p2p_export.graphs.region_walk import RegionWalk
from p2p_export.graphs.rows import Rows
from p2p_export.proxies import ProxySet


class FusedLowering(LoweringPass):
    """Planned layers compute no visual rows; every layer caches all tokens.

    1. Inside a region only text rows flow (`RegionWalk`).
    2. A `proxy` layer caches RoPE(µ_k, position) and µ_v at the visual rows' places.
    """

    def lower(self, graph: gs.Graph, emitter: Emitter, rows: Rows) -> None:
        write = LayerWriter(emitter, self.decoder, rows)
        proxy_layer = _FusedProxyLayer(emitter, rows, write, self.proxies)
        RegionWalk(
            graph, self.decoder, self.plan.layers, self.proxies,
            emitter=emitter, rows=rows, write=write, proxy_layer=proxy_layer,
        ).run()  # fmt: skip


class _FusedProxyLayer:
    """Keys and values of all rows lie in the cache, in the order of the sequence."""

    def __init__(self, emitter: Emitter, rows: Rows, write: LayerWriter, proxies: ProxySet) -> None:
        self._e = emitter
        self._rows = rows
        self._write = write
        self._proxies = proxies

    def cache(self, layer: LayerParts, normed: gs.Tensor) -> None:
        merged = []
        for site in KEY_VALUE:
            text = self._write.linear(layer, site, normed)
            vector = self._e.vector(
                f"layers.{layer.index}.{site}.image", self._proxies.vector(layer.index, site)
            )
            width = layer.linears[site].out_features
            merged.append(self._rows.merge_constant(text, vector, width))
        self._write.cache(layer, *merged)

    def attend_text(self, layer: LayerParts, normed: gs.Tensor) -> gs.Tensor:
        return self._write.attention(layer, normed, self._rows.text_queries)

    def attend_asked(self, layer: LayerParts, normed: gs.Tensor) -> gs.Tensor:
        return self._write.attention(layer, normed, self._rows.asked_queries)
