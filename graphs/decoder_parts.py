"""What the rewrite needs to know of a decoder's graph: its layers, and what of them is a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from p2p_export.proxies import Site

SITE_SCOPES: Mapping[Site, str] = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


@dataclass(frozen=True)
class Linear:
    """`weight` is the [in,out] operand of the MatMul, `bias` the Add's, if there is one.

    `rows` [B,R,in] is what is multiplied, `output` [B,R,out] what comes out, bias included.
    """

    weight: gs.Tensor
    bias: gs.Tensor | None
    rows: gs.Tensor
    output: gs.Tensor
    in_features: int
    out_features: int


@dataclass(frozen=True)
class Norm:
    """RMSNorm of `rows` [B,R,D]: its weight [D] and epsilon, and what comes out."""

    weight: gs.Tensor
    eps: float
    rows: gs.Tensor
    output: gs.Tensor


@dataclass(frozen=True)
class Attention:
    """softmax(query·keysᵀ/√head_dim + mask)·values over past and present.

    `cos` and `sin` [B,S,head_dim] float32 turn keys and queries, `mask` float32 is added to scores.
    """

    cos: gs.Tensor
    sin: gs.Tensor
    mask: gs.Tensor


@dataclass(frozen=True)
class LayerParts:
    """One decoder layer: the residual it reads and writes, its linears, norms and cache."""

    index: int
    entry: gs.Tensor
    exit: gs.Tensor
    linears: Mapping[Site, Linear]
    input_norm: Norm
    post_attention_norm: Norm
    attention: Attention
    past: tuple[gs.Tensor, gs.Tensor]
    present: tuple[gs.Tensor, gs.Tensor]
    nodes: tuple[gs.Node, ...]


@dataclass(frozen=True)
class DecoderParts:
    """A decoder graph, located.

    `cos` and `sin` are [B,S,head_dim] float32, computed from `position_ids` by `rotary_nodes`.
    """

    inputs_embeds: gs.Tensor
    attention_mask: gs.Tensor
    position_ids: gs.Tensor
    logits: gs.Tensor
    rotary_nodes: tuple[gs.Node, ...]
    cos: gs.Tensor
    sin: gs.Tensor
    layers: tuple[LayerParts, ...]
    dtype: np.dtype[np.generic]
    hidden_size: int
    head_dim: int
    num_key_value_heads: int
    num_attention_heads: int

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a key/value head."""
        return self.num_attention_heads > self.num_key_value_heads

    def site_size(self, layer: int, site: Site) -> int:
        return self.layers[layer].linears[site].out_features


def scope_of(node: gs.Node) -> str:
    """Module path in a node's name: `layers.3.mlp.up_proj/MatMul_41` -> `layers.3.mlp.up_proj`."""
    return str(node.name).rpartition("/")[0]
