"""The `elided` lowering: `proxy` layers keep no visual keys and values in their cache (DESIGN §2).

All visual keys of such a layer are RoPE(µ_k, position) and all its visual values are µ_v. With a
rotated query q = (q1, q2) and µ_k = (k1, k2), split in halves,

    A = q1 k1 + q2 k2,  B = q2 k1 - q1 k2,  scores = [A|B] [cos|sin]ᵀ,

where [cos|sin] depends on the visual positions alone and serves every head of every layer; the
visual tokens together contribute the sum of their probabilities times µ_v.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from p2p_export.errors import RewriteError
from p2p_export.graphs.decoder_parts import SITE_SCOPES, DecoderParts, LayerParts, scope_of
from p2p_export.graphs.elided_context import ElidedContext, ElidedQueries
from p2p_export.graphs.emit import FLOAT32, Emitter
from p2p_export.graphs.locate_rotary import rotation_ending_in
from p2p_export.graphs.node_pattern import behind, produced_by
from p2p_export.graphs.passes.lowering import LoweringPass
from p2p_export.graphs.planned_layer import KEY_VALUE, LayerWriter
from p2p_export.graphs.region_walk import RegionWalk, replace_input
from p2p_export.graphs.rows import Rows
from p2p_export.proxies import ProxySet, Site

# Of a cache [B,Hkv,P,head_dim].
PAST_AXIS = 2
TEXT_PAST, TEXT_CONTEXT = "text_past", "text_context"


class ElidedLowering(LoweringPass):
    """Planned layers compute no visual rows, and `proxy` layers cache none.

    1. Inside a region only text rows flow (`RegionWalk`).
    2. A `proxy` layer caches text rows; its scores against visual tokens come from [cos|sin].
    3. What counts the past in such a cache counts it in the attention mask instead.
    4. Afterwards nothing of visual length enters or leaves those caches.
    """

    def lower(self, graph: gs.Graph, emitter: Emitter, rows: Rows) -> None:
        decoder = self.decoder
        write = LayerWriter(emitter, decoder, rows)
        context = ElidedContext(emitter, decoder, rows)
        proxy_layer = _ElidedProxyLayer(emitter, decoder, rows, write, context, self.proxies)
        RegionWalk(
            graph, decoder, self.plan.layers, self.proxies,
            emitter=emitter, rows=rows, write=write, proxy_layer=proxy_layer,
        ).run()  # fmt: skip
        _count_the_past_without(self._elided, rows, emitter)
        _name_axes(self._elided)
        graph.inputs += context.inputs

    def ensures(self, graph: gs.Graph) -> None:
        super().ensures(graph)
        for layer in self._elided:
            for past, present in zip(layer.past, layer.present, strict=True):
                if (past.shape[2], present.shape[2]) != (TEXT_PAST, TEXT_CONTEXT):
                    raise RewriteError(f"layer {layer.index}: {past.name} is not of text alone")
            for site, present in zip(KEY_VALUE, layer.present, strict=True):
                scope = f"layers.{layer.index}.{SITE_SCOPES[site]}"
                if not _appends_output_of(scope, present):
                    raise RewriteError(
                        f"layer {layer.index}: {present.name} takes more than what {scope} gives"
                    )

    @property
    def _elided(self) -> list[LayerParts]:
        return [one for one in self.decoder.layers if self.plan.mode(one.index) == "proxy"]


class _ElidedProxyLayer:
    """Keys and values of text rows alone lie in the cache."""

    def __init__(
        self,
        emitter: Emitter,
        decoder: DecoderParts,
        rows: Rows,
        write: LayerWriter,
        context: ElidedContext,
        proxies: ProxySet,
    ) -> None:
        self._e = emitter
        self._decoder = decoder
        self._rows = rows
        self._write = write
        self._context = context
        self._proxies = proxies

    def cache(self, layer: LayerParts, normed: gs.Tensor) -> None:
        key, value = (self._write.linear(layer, site, normed) for site in KEY_VALUE)
        queries = self._rows.text_queries
        self._write.append(layer, key, value, queries.cos, queries.sin)

    def attend_text(self, layer: LayerParts, normed: gs.Tensor) -> gs.Tensor:
        return self._attention(layer, normed, self._context.text_queries)

    def attend_asked(self, layer: LayerParts, normed: gs.Tensor) -> gs.Tensor:
        return self._attention(layer, normed, self._context.asked_queries)

    def _attention(self, layer: LayerParts, normed: gs.Tensor, queries: ElidedQueries) -> gs.Tensor:
        """Attention of the query rows `normed` [B,R,D], projected."""
        e, grouped = self._e, self._decoder.grouped
        with self._write.attention_scope(layer):
            query = self._write.query(layer, normed, queries.rows)
            text = e.matmul(query, e.transpose(layer.present[0], (0, 1, 3, 2)))
            visual = self._visual_scores(layer, query)
            if grouped:
                text = e.reshape(text, queries.split_scores)
            visual = e.reshape(visual, queries.split_scores)
            scores = e.wide(e.concat([text, visual], axis=-1))
            weights = e.op("Softmax", e.add(scores, queries.mask), axis=-1)
            weights = e.slice(weights, 0, self._context.text_columns, axis=-1)
            if grouped:
                weights = e.reshape(weights, queries.merged_scores)
            # What the text tokens leave of each row's probability is the visual tokens'.
            left = e.op("ReduceSum", weights, e.constant([-1]), keepdims=1)
            left = e.narrow(e.op("Sub", e.constant(1.0, FLOAT32), left))
            visual = e.mul(left, self._per_head(layer, "v", e.dtype))
            mixed = e.add(e.matmul(e.narrow(weights), layer.present[1]), visual)
            return self._write.output(layer, mixed)

    def _visual_scores(self, layer: LayerParts, query: gs.Tensor) -> gs.Tensor:
        """[B,Hkv,groups*R,head_dim] -> [B,heads*R,V]: one product for all heads."""
        e, head_dim = self._e, self._decoder.head_dim
        half = head_dim // 2
        key = self._per_head(layer, "k", FLOAT32)
        first, second = e.slice(key, 0, half, axis=3), e.slice(key, half, None, axis=3)
        same = e.concat([first, first], axis=3)
        crossed = e.concat([second, e.op("Neg", second)], axis=3)
        wide = e.wide(query)
        swapped = e.concat([e.slice(wide, half, None, axis=3), e.slice(wide, 0, half, axis=3)], 3)
        turned = e.narrow(e.add(e.mul(wide, same), e.mul(swapped, crossed)))
        return e.matmul(e.reshape(turned, [0, -1, head_dim]), self._context.table)

    def _per_head(self, layer: LayerParts, site: Site, dtype: np.dtype[Any]) -> gs.Tensor:
        """The proxy [1,Hkv,1,head_dim]."""
        vector = self._proxies.vector(layer.index, site).astype(dtype)
        heads = vector.reshape(1, self._decoder.num_key_value_heads, 1, -1)
        return self._e.proxy(f"layers.{layer.index}.{site}.image", heads)


def _appends_output_of(scope: str, present: gs.Tensor) -> bool:
    """Whether what is joined to the past is the projection of `scope`, turned or not."""
    joined = produced_by(present, "Concat")
    if joined is None or len(joined.inputs) != 2:
        return False
    new = behind(joined.inputs[1], "Cast")
    rotation = rotation_ending_in(new.inputs[0]) if new.inputs else None
    rows = behind(new if rotation is None else rotation.heads, "Cast", "Transpose", "Reshape")
    return bool(rows.inputs) and scope_of(rows.inputs[0]) == scope


def _count_the_past_without(elided: list[LayerParts], rows: Rows, emitter: Emitter) -> None:
    """Who counts the tokens before this call in a cache that holds text alone counts them anew."""
    for layer in elided:
        for past in layer.past:
            for node in [node for node in past.outputs if node.op == "Shape"]:
                axes = range(4)[node.attrs.get("start", 0) : node.attrs.get("end", 4)]
                if PAST_AXIS not in axes:
                    continue
                sizes = [
                    rows.batch,
                    emitter.constant([past.shape[1]]),
                    rows.past,
                    emitter.constant([past.shape[3]]),
                ]
                with emitter.scope("rows"):
                    shape = emitter.concat([sizes[axis] for axis in axes], axis=0)
                counted = node.outputs[0]
                replace_input(list(counted.outputs), counted, shape)


def _name_axes(elided: list[LayerParts]) -> None:
    for layer in elided:
        for past, present in zip(layer.past, layer.present, strict=True):
            past.shape = [*past.shape[:2], TEXT_PAST, past.shape[3]]
            present.shape = [*present.shape[:2], TEXT_CONTEXT, present.shape[3]]
