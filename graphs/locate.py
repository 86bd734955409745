"""Finding a decoder's parts in its ONNX graph by the scopes in its node names.

Names of initializers say nothing reliable (exporters rename and merge them); the path of the module
a node came from does. What the rewrite writes anew it must know whole, so each part is looked at
node by node, and whatever differs is refused with its layer, its node and the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

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
from p2p_export.graphs.decoder_parts import (
    SITE_SCOPES,
    DecoderParts,
    LayerParts,
    Linear,
    Norm,
    scope_of,
)
from p2p_export.graphs.emit import CONSTANT_PREFIX, dtype_of
from p2p_export.graphs.locate_attention import AttentionPlace, locate_attention
from p2p_export.graphs.locate_linear import locate_linear
from p2p_export.graphs.locate_mask import check_mask
from p2p_export.graphs.locate_mlp import check_mlp
from p2p_export.graphs.locate_norm import locate_norm
from p2p_export.graphs.locate_rotary import rotary_nodes
from p2p_export.graphs.node_pattern import ROW_OPS, behind
from p2p_export.proxies import Site

PARTS = ("key", "value")


def locate_decoder(graph: gs.Graph) -> DecoderParts:
    """The parts of the decoder in `graph`; `RewriteError` when it is not one we can rewrite."""
    tensors = graph.tensors()
    if any(name.startswith(CONSTANT_PREFIX) for name in tensors):
        raise RewriteError(
            "the graph was rewritten before (it holds proxy constants); rewrite the dense decoder"
        )
    scopes: dict[str, list[gs.Node]] = defaultdict(list)
    for node in graph.nodes:
        scopes[scope_of(node)].append(node)
    inputs = _bindings(graph)
    count = 0
    while past_name(count, "key") in inputs:
        count += 1
    cache_shape = inputs[past_name(0, "key")].shape
    heads, head_dim = int(cache_shape[1]), int(cache_shape[3])
    layers = tuple(_locate_layer(i, scopes, tensors, head_dim) for i in range(count))
    _check_layers_follow(layers, inputs)
    attention = layers[0].attention
    return DecoderParts(
        inputs_embeds=inputs[INPUTS_EMBEDS],
        attention_mask=inputs[ATTENTION_MASK],
        position_ids=inputs[POSITION_IDS],
        logits=tensors[LOGITS],
        rotary_nodes=rotary_nodes(graph.nodes, attention.cos, attention.sin, inputs[POSITION_IDS]),
        cos=attention.cos,
        sin=attention.sin,
        layers=layers,
        dtype=dtype_of(inputs[INPUTS_EMBEDS]),
        hidden_size=int(inputs[INPUTS_EMBEDS].shape[2]),
        head_dim=head_dim,
        num_key_value_heads=heads,
        num_attention_heads=layers[0].linears["q"].out_features // head_dim,
    )


def _bindings(graph: gs.Graph) -> dict[str, gs.Tensor]:
    """The graph's inputs by name, once they and its outputs are seen to be a decoder's."""
    inputs = {tensor.name: tensor for tensor in graph.inputs}
    outputs = {tensor.name for tensor in graph.outputs}
    for name in (INPUTS_EMBEDS, ATTENTION_MASK, POSITION_IDS):
        if name not in inputs:
            raise RewriteError(
                f"the graph has no input {name}, so it is no decoder we can rewrite; export the "
                "decoder with p2p-export"
            )
    if LOGITS not in outputs:
        raise RewriteError(
            f"the graph has no output {LOGITS}, so it is no decoder with its head; export the "
            "decoder with p2p-export"
        )
    if past_name(0, "key") not in inputs:
        raise RewriteError(
            f"the graph has no input {past_name(0, 'key')}; export the decoder with its KV cache"
        )
    layer = 0
    while past_name(layer, "key") in inputs:
        missing = [
            name
            for name, there in (
                (past_name(layer, "value"), inputs),
                *((present_name(layer, part), outputs) for part in PARTS),
            )
            if name not in there
        ]
        if missing:
            raise RewriteError(
                f"layer {layer}: the graph has no {missing[0]}; export the decoder with its KV "
                "cache"
            )
        layer += 1
    return inputs


def _locate_layer(
    index: int,
    scopes: Mapping[str, list[gs.Node]],
    tensors: Mapping[str, gs.Tensor],
    head_dim: int,
) -> LayerParts:
    prefix = f"layers.{index}"
    input_norm = locate_norm(index, f"{prefix}.input_layernorm", scopes)
    post_attention_norm = locate_norm(index, f"{prefix}.post_attention_layernorm", scopes)
    linears: dict[Site, Linear] = {
        site: locate_linear(index, f"{prefix}.{path}", scopes) for site, path in SITE_SCOPES.items()
    }
    past = (tensors[past_name(index, "key")], tensors[past_name(index, "value")])
    present = (tensors[present_name(index, "key")], tensors[present_name(index, "value")])
    _check_reads(index, linears, input_norm, post_attention_norm)
    check_mlp(index, linears)
    attention = locate_attention(AttentionPlace(index, linears, past, present, head_dim))
    check_mask(index, attention.mask, tensors[ATTENTION_MASK])
    return LayerParts(
        index=index,
        entry=input_norm.rows,
        exit=_exit(index, input_norm.rows, linears, post_attention_norm),
        linears=linears,
        input_norm=input_norm,
        post_attention_norm=post_attention_norm,
        attention=attention,
        past=past,
        present=present,
        nodes=tuple(
            node
            for scope, nodes in scopes.items()
            if scope == prefix or scope.startswith(f"{prefix}.")
            for node in nodes
        ),
    )


def _check_reads(
    layer: int, linears: Mapping[Site, Linear], input_norm: Norm, post_attention_norm: Norm
) -> None:
    """Projections multiply what the norm before them gives, or rows of it."""
    reads: tuple[tuple[tuple[Site, ...], Norm, str], ...] = (
        (("q", "k", "v"), input_norm, "input_layernorm"),
        (("gate", "up"), post_attention_norm, "post_attention_layernorm"),
    )
    for sites, norm, name in reads:
        for site in sites:
            if behind(linears[site].rows, *ROW_OPS) is not norm.output:
                raise RewriteError(
                    f"layer {layer}: {SITE_SCOPES[site]} does not multiply what {name} gives; a "
                    "layer of another form cannot be rewritten"
                )


def _exit(
    layer: int, entry: gs.Tensor, linears: Mapping[Site, Linear], post_attention_norm: Norm
) -> gs.Tensor:
    """What the layer hands on: entry + attention, + MLP, with nothing else in between."""
    residual = entry
    for site in ("o", "down"):
        output = linears[site].output
        added = [
            node
            for node in output.outputs
            if node.op == "Add" and any(behind(t, *ROW_OPS) is residual for t in node.inputs)
        ]
        if len(added) != 1 or len(output.outputs) != 1:
            raise RewriteError(
                f"layer {layer}: the output of {SITE_SCOPES[site]} is not added to the residual "
                "alone; a layer of another form cannot be rewritten"
            )
        residual = added[0].outputs[0]
        if site == "o" and post_attention_norm.rows is not residual:
            raise RewriteError(
                f"layer {layer}: post_attention_layernorm does not read entry + attention; a layer "
                "of another form cannot be rewritten"
            )
    return residual


def _check_layers_follow(layers: tuple[LayerParts, ...], inputs: Mapping[str, gs.Tensor]) -> None:
    """Each layer reads what the one before it hands on, and all rotate by the same tables."""
    entry = inputs[INPUTS_EMBEDS]
    first = layers[0].attention
    for layer in layers:
        if layer.entry is not entry:
            raise RewriteError(
                f"layer {layer.index} reads {layer.entry.name} and not {entry.name}, what comes "
                "before it; such a decoder cannot be rewritten"
            )
        entry = layer.exit
        if layer.attention.cos is not first.cos or layer.attention.sin is not first.sin:
            raise RewriteError(
                f"layer {layer.index} rotates by other tables than layer 0; such a decoder cannot "
                "be rewritten"
            )
