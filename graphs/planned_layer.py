"""Writing a decoder layer that computes some rows only, over the weights of the dense one."""

from __future__ import annotations

from contextlib import AbstractContextManager

import onnx_graphsurgeon as gs

from p2p_export.graphs.decoder_parts import SITE_SCOPES, DecoderParts, LayerParts, Norm
from p2p_export.graphs.emit import FLOAT32, Emitter
from p2p_export.graphs.rows import Queries, Rows
from p2p_export.proxies import Site

KEY_VALUE: tuple[Site, Site] = ("k", "v")


class LayerWriter:
    """The computations of a layer, each on the rows it is given."""

    def __init__(self, emitter: Emitter, decoder: DecoderParts, rows: Rows) -> None:
        self._e = emitter
        self._decoder = decoder
        self._rows = rows

    def input_norm(self, layer: LayerParts, hidden: gs.Tensor) -> gs.Tensor:
        with self._e.scope(f"layers.{layer.index}.input_layernorm"):
            return self._norm(hidden, layer.input_norm)

    def linear(self, layer: LayerParts, site: Site, rows: gs.Tensor) -> gs.Tensor:
        """`site` of `layer` on rows [B,R,in]."""
        linear = layer.linears[site]
        with self._e.scope(f"layers.{layer.index}.{SITE_SCOPES[site]}"):
            product = self._e.matmul(rows, linear.weight)
            return product if linear.bias is None else self._e.add(product, linear.bias)

    def attention_scope(self, layer: LayerParts) -> AbstractContextManager[None]:
        """Names what is written inside after the layer's attention."""
        return self._e.scope(f"layers.{layer.index}.self_attn")

    def cache(self, layer: LayerParts, key: gs.Tensor, value: gs.Tensor) -> None:
        """Put behind the past what this call adds: key and value of all rows, [B,S,Hkv*head_dim].

        Keys come without RoPE; it is applied here, at every row's own position.
        """
        self.append(layer, key, value, *self._rows.rotary)

    def append(
        self,
        layer: LayerParts,
        key: gs.Tensor,
        value: gs.Tensor,
        cos: gs.Tensor,
        sin: gs.Tensor,
    ) -> None:
        """As `cache`, of any rows [B,R,Hkv*head_dim] with their `cos` and `sin`."""
        with self.attention_scope(layer):
            rotated = self.rotate(self.heads(key), cos, sin)
            self._append(layer.past[0], rotated, layer.present[0])
            self._append(layer.past[1], self.heads(value), layer.present[1])

    def attention(self, layer: LayerParts, normed: gs.Tensor, queries: Queries) -> gs.Tensor:
        """Attention of the query rows `normed` [B,R,D] over the layer's cache, projected."""
        e, grouped = self._e, self._decoder.grouped
        with self.attention_scope(layer):
            query = self.query(layer, normed, queries)
            scores = e.matmul(query, e.transpose(layer.present[0], (0, 1, 3, 2)))
            scores = e.wide(scores)
            if grouped:
                scores = e.reshape(scores, queries.split_scores)
            weights = e.op("Softmax", e.add(scores, queries.mask), axis=-1)
            weights = e.narrow(weights)
            if grouped:
                weights = e.reshape(weights, queries.merged_scores)
            return self.output(layer, e.matmul(weights, layer.present[1]))

    def query(self, layer: LayerParts, normed: gs.Tensor, queries: Queries) -> gs.Tensor:
        """Queries rotated and scaled, those of a key/value group side by side.

        [B,R,D] -> [B,Hkv,groups*R,head_dim]
        """
        e, decoder = self._e, self._decoder
        query = self.rotate(self.heads(self.linear(layer, "q", normed)), queries.cos, queries.sin)
        query = e.mul(query, e.constant(decoder.head_dim**-0.5, e.dtype))
        if decoder.grouped:
            query = e.reshape(query, [0, decoder.num_key_value_heads, -1, decoder.head_dim])
        return query

    def output(self, layer: LayerParts, mixed: gs.Tensor) -> gs.Tensor:
        """[B,Hkv,groups*R,head_dim] -> [B,R,D] through the output projection."""
        e, decoder = self._e, self._decoder
        if decoder.grouped:
            mixed = e.reshape(mixed, [0, decoder.num_attention_heads, -1, decoder.head_dim])
        mixed = e.transpose(mixed, (0, 2, 1, 3))
        mixed = e.reshape(mixed, [0, 0, decoder.num_attention_heads * decoder.head_dim])
        return self.linear(layer, "o", mixed)

    def mlp(self, layer: LayerParts, hidden: gs.Tensor) -> gs.Tensor:
        """The gated MLP behind its norm, added to `hidden`."""
        e = self._e
        with e.scope(f"layers.{layer.index}.post_attention_layernorm"):
            normed = self._norm(hidden, layer.post_attention_norm)
        gate, up = self.linear(layer, "gate", normed), self.linear(layer, "up", normed)
        with e.scope(f"layers.{layer.index}.mlp"):
            activated = e.mul(e.mul(gate, e.op("Sigmoid", gate)), up)
        return e.add(hidden, self.linear(layer, "down", activated))

    def heads(self, rows: gs.Tensor) -> gs.Tensor:
        """[B,R,H*head_dim] -> [B,H,R,head_dim]"""
        e = self._e
        split = e.op("Reshape", rows, e.constant([0, 0, -1, self._decoder.head_dim]))
        return e.transpose(split, (0, 2, 1, 3))

    def rotate(self, heads: gs.Tensor, cos: gs.Tensor, sin: gs.Tensor) -> gs.Tensor:
        """RoPE in float32."""
        e = self._e
        half = self._decoder.head_dim // 2
        wide = e.wide(heads)
        first, second = e.slice(wide, 0, half, axis=3), e.slice(wide, half, None, axis=3)
        turned = e.concat([e.op("Neg", second), first], axis=3)
        return e.narrow(e.add(e.mul(wide, cos), e.mul(turned, sin)))

    def _norm(self, hidden: gs.Tensor, norm: Norm) -> gs.Tensor:
        """RMSNorm in float32."""
        e = self._e
        wide = e.wide(hidden)
        squares = e.op("Pow", wide, e.constant(2.0, FLOAT32))
        mean = e.op("ReduceMean", squares, e.constant([-1]), keepdims=1)
        root = e.op("Sqrt", e.add(mean, e.constant(norm.eps, FLOAT32)))
        return e.mul(norm.weight, e.narrow(e.op("Div", wide, root)))

    def _append(self, past: gs.Tensor, new: gs.Tensor, present: gs.Tensor) -> None:
        present.inputs.clear()
        self._e.concat([past, new], axis=2, output=present)
