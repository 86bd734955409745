"""Finding a decoder's parts in its ONNX graph by the scopes in its node names.

Names of initializers say nothing reliable (exporters rename and merge them); the path of the
module a node came from does. `refuse` names the node and layer when something is not where a
decoder exported by `export_decoder` has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from p2p_export.bindings import (
    ATTENTION_MASK,
    INPUTS_EMBEDS,
    LOGITS,
    POSITION_IDS,
    past_name,
    present_name,
)
from p2p_export.errors import RewriteError
from p2p_export.graphs.emit import CONSTANT_PREFIX, dtype_of
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
    """RMSNorm: its weight [D] and epsilon."""

    weight: gs.Tensor
    eps: float


@dataclass(frozen=True)
class LayerParts:
    """One decoder layer: the residual it reads and writes, its linears, norms and cache."""

    index: int
    entry: gs.Tensor
    exit: gs.Tensor
    linears: Mapping[Site, Linear]
    input_norm: Norm
    post_attention_norm: Norm
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


def locate_decoder(graph: gs.Graph) -> DecoderParts:
    """The parts of the decoder in `graph`; `RewriteError` when it is not one we can rewrite."""
    tensors = graph.tensors()
    scopes: dict[str, list[gs.Node]] = defaultdict(list)
    for node in graph.nodes:
        scopes[scope_of(node)].append(node)
    if any(name.startswith(CONSTANT_PREFIX) for name in tensors):
        raise RewriteError(
            "the graph was rewritten before (it holds proxy constants); rewrite the dense decoder"
        )
    inputs = {tensor.name: tensor for tensor in graph.inputs}
    outputs = {tensor.name for tensor in graph.outputs}
    for name in (INPUTS_EMBEDS, ATTENTION_MASK, POSITION_IDS):
        if name not in inputs:
            raise RewriteError(f"the graph has no input {name}; export the decoder with p2p-export")
    if LOGITS not in outputs:
        raise RewriteError("the graph has no output logits; export the decoder with p2p-export")
    count = 0
    while past_name(count, "key") in inputs:
        count += 1
    if count == 0:
        raise RewriteError(
            "the graph has no input past_key_values.0.key; export the decoder with its KV cache"
        )
    cache_shape = inputs[past_name(0, "key")].shape
    heads, head_dim = int(cache_shape[1]), int(cache_shape[3])
    layers = tuple(_locate_layer(i, scopes, tensors) for i in range(count))
    return DecoderParts(
        inputs_embeds=inputs[INPUTS_EMBEDS],
        attention_mask=inputs[ATTENTION_MASK],
        position_ids=inputs[POSITION_IDS],
        rotary_nodes=tuple(scopes["rotary_emb"]),
        cos=_rotary_output(scopes["rotary_emb"], "Cos"),
        sin=_rotary_output(scopes["rotary_emb"], "Sin"),
        layers=layers,
        dtype=dtype_of(inputs[INPUTS_EMBEDS]),
        hidden_size=int(inputs[INPUTS_EMBEDS].shape[2]),
        head_dim=head_dim,
        num_key_value_heads=heads,
        num_attention_heads=layers[0].linears["q"].out_features // head_dim,
    )


def _locate_layer(
    index: int, scopes: Mapping[str, list[gs.Node]], tensors: Mapping[str, gs.Tensor]
) -> LayerParts:
    prefix = f"layers.{index}"
    norm_scope = f"{prefix}.input_layernorm"
    norm_nodes = scopes.get(norm_scope, [])
    if not norm_nodes:
        raise RewriteError(f"layer {index}: no node has the scope {norm_scope}")
    inside = {id(tensor) for node in norm_nodes for tensor in node.outputs}
    entries = [
        tensor
        for node in norm_nodes
        for tensor in node.inputs
        if isinstance(tensor, gs.Variable) and id(tensor) not in inside
    ]
    additions = [node for node in scopes.get(prefix, []) if node.op == "Add"]
    if len(additions) != 2:
        raise RewriteError(
            f"layer {index}: {len(additions)} residual additions have the scope {prefix}, not 2"
        )
    return LayerParts(
        index=index,
        entry=entries[0],
        exit=additions[1].outputs[0],
        linears={
            site: _locate_linear(index, f"{prefix}.{path}", scopes)
            for site, path in SITE_SCOPES.items()
        },
        input_norm=_locate_norm(index, norm_scope, scopes),
        post_attention_norm=_locate_norm(index, f"{prefix}.post_attention_layernorm", scopes),
        past=(tensors[past_name(index, "key")], tensors[past_name(index, "value")]),
        present=(tensors[present_name(index, "key")], tensors[present_name(index, "value")]),
        nodes=tuple(
            node
            for scope, nodes in scopes.items()
            if scope == prefix or scope.startswith(f"{prefix}.")
            for node in nodes
        ),
    )


def _locate_linear(layer: int, scope: str, scopes: Mapping[str, list[gs.Node]]) -> Linear:
    products = [node for node in scopes.get(scope, []) if node.op == "MatMul"]
    if len(products) != 1:
        raise RewriteError(f"layer {layer}: {len(products)} MatMul have the scope {scope}, not 1")
    rows, weight = products[0].inputs
    additions = [node for node in scopes[scope] if node.op == "Add"]
    biases = [t for node in additions for t in node.inputs if isinstance(t, gs.Constant)]
    inside, outside = _features(layer, products[0])
    return Linear(
        weight=weight,
        bias=biases[0] if biases else None,
        rows=rows,
        output=(additions[-1] if biases else products[0]).outputs[0],
        in_features=inside,
        out_features=outside,
    )


def _features(layer: int, product: gs.Node) -> tuple[int, int]:
    """Sizes in and out of a MatMul, from its weight [in,out] or the Transpose of [out,in]."""
    weight = product.inputs[1]
    if isinstance(weight, gs.Constant):
        return int(weight.shape[-2]), int(weight.shape[-1])
    if weight.inputs and weight.inputs[0].op == "Transpose":
        stored = weight.inputs[0].inputs[0].shape
        return int(stored[1]), int(stored[0])
    raise RewriteError(f"layer {layer}: {product.name} multiplies with something not a weight")


def _locate_norm(layer: int, scope: str, scopes: Mapping[str, list[gs.Node]]) -> Norm:
    constants: dict[str, list[gs.Constant]] = {"Mul": [], "Add": []}
    for node in scopes.get(scope, []):
        if node.op in constants:
            constants[node.op] += [t for t in node.inputs if isinstance(t, gs.Constant)]
    if len(constants["Mul"]) != 1 or len(constants["Add"]) != 1:
        raise RewriteError(
            f"layer {layer}: {scope} is not an RMSNorm with one weight and one epsilon"
        )
    return Norm(constants["Mul"][0], float(np.asarray(constants["Add"][0].values).reshape(-1)[0]))


def _rotary_output(nodes: list[gs.Node], op: str) -> gs.Tensor:
    found = [node for node in nodes if node.op == op]
    if len(found) != 1:
        raise RewriteError(f"{len(found)} {op} nodes have the scope rotary_emb, not 1")
    output = found[0].outputs[0]
    for consumer in output.outputs:
        if scope_of(consumer) == "rotary_emb":  # the attention scaling of some RoPE kinds
            return consumer.outputs[0]
    return output
