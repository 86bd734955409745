"""A checkpoint's text model -> `decoder.dense.onnx` with KV cache, beside one weight file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from p2p_export.bindings import (
    ATTENTION_MASK,
    INPUTS_EMBEDS,
    LOGITS,
    POSITION_IDS,
    past_name,
    present_name,
)
from p2p_export.errors import InputError
from p2p_export.graphs.decoder_module import Biases, Decoder
from p2p_export.graphs.meta_export import export_from_meta
from p2p_export.graphs.stack_layers import PROTOTYPE_LAYERS, stack_layers
from p2p_export.graphs.weights import attach_weights, write_weights
from p2p_export.models import DecoderSpec, Family

Precision = Literal["fp32", "fp16", "bf16"]

DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
DENSE_FILE = "decoder.dense.onnx"
WEIGHTS_FILE = "decoder.weights.safetensors"
# RoPE kinds whose frequencies do not depend on the sequence at hand.
STATIC_ROPE = ("default", "linear", "llama3", "yarn", "proportional")


def export_decoder(
    model: Any,
    family: Family,
    spec: DecoderSpec,
    folder: Path,
    *,
    precision: Precision = "fp32",
) -> Path:
    """Write `decoder.dense.onnx` and `decoder.weights.safetensors` into `folder`.

    `model` is transformers' own, weights loaded. Nothing of it is copied: the graph is made from
    shapes, the weights are streamed to the file one tensor at a time. Returns the graph's path.
    Raises `InputError` for a decoder whose computation we do not reproduce.
    """
    dtype = DTYPES[precision]
    text: Any = family.decoder(model)
    _check_supported(text.config)
    rotary: Any = text.get_submodule("rotary_emb")
    _check_whole_head_turns(rotary, spec)
    scaling = float(rotary.attention_scaling)
    shallow = replace(spec, num_hidden_layers=min(PROTOTYPE_LAYERS, spec.num_hidden_layers))
    with torch.device("meta"):
        decoder = Decoder(spec, _biases(model, family), scaling)
        prototype = Decoder(shallow, _biases(model, family), scaling).to(dtype)
        prototype.rotary_emb.inv_freq = torch.empty(spec.head_dim // 2, dtype=torch.float32)
    graph = _export_graph(prototype, shallow, dtype)
    if spec.num_hidden_layers > PROTOTYPE_LAYERS:
        stack_layers(graph, spec.num_hidden_layers)
    weights = _weights(model, family, decoder)
    locations = write_weights(folder / WEIGHTS_FILE, weights, dtype)
    attach_weights(graph, WEIGHTS_FILE, locations)
    inv_freq = rotary.inv_freq.detach().float().cpu().numpy()
    graph.graph.initializers["rotary_emb.inv_freq"].const_value = ir.tensor(
        inv_freq, name="rotary_emb.inv_freq"
    )
    path = folder / DENSE_FILE
    onnx.save(ir.to_proto(graph), path)
    return path


def _export_graph(decoder: Decoder, spec: DecoderSpec, dtype: torch.dtype) -> ir.Model:
    # Sizes of the example; 1 for a dynamic dimension would be taken for a constant.
    batch, rows, past = 2, 5, 3
    layers, heads = spec.num_hidden_layers, spec.num_key_value_heads

    def empty(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.empty(*shape, dtype=of, device="meta")

    axes = (spec.position_axes,) if spec.position_axes > 1 else ()
    args = (
        empty(batch, rows, spec.hidden_size),
        empty(batch, past + rows, of=torch.int64),
        empty(*axes, batch, rows, of=torch.int64),
        [empty(batch, heads, past, spec.head_dim) for _ in range(2 * layers)],
    )
    dim = torch.export.Dim
    b, s, p = dim("batch"), dim("sequence"), dim("past")
    first = len(axes)
    dynamic_shapes = (
        {0: b, 1: s},
        {0: b, 1: dim.AUTO},  # past + sequence, which Dim cannot say
        {first: b, first + 1: s},
        [{0: b, 2: p}] * (2 * layers),
    )
    parts = [(i, part) for i in range(layers) for part in ("key", "value")]
    graph = export_from_meta(
        decoder,
        args,
        input_names=[
            INPUTS_EMBEDS,
            ATTENTION_MASK,
            POSITION_IDS,
            *(past_name(i, part) for i, part in parts),
        ],
        output_names=[LOGITS, *(present_name(i, part) for i, part in parts)],
        dynamic_shapes=dynamic_shapes,
    )
    _name_context_axis(graph)
    return graph


def _name_context_axis(model: ir.Model) -> None:
    """past + sequence is one axis, `context`, wherever the exporter left a formula for it."""
    for value in [*model.graph.inputs, *model.graph.outputs]:
        axis = 1 if value.name == ATTENTION_MASK else 2
        if value.name == ATTENTION_MASK or str(value.name).startswith("present."):
            assert value.shape is not None
            dims = list(value.shape)
            dims[axis] = ir.SymbolicDim("context")
            value.shape = ir.Shape(dims)


def _weights(model: Any, family: Family, decoder: nn.Module) -> dict[str, Tensor]:
    """Our parameter names -> the checkpoint's tensors, in our order."""
    text = family.decoder(model).state_dict()
    head = model.get_submodule(family.head).weight
    weights = {}
    for name, parameter in decoder.named_parameters():
        tensor = head if name == "lm_head.weight" else text[name]
        if tensor.shape != parameter.shape:
            raise InputError(
                f"weight {name} has shape {list(tensor.shape)} and the config says "
                f"{list(parameter.shape)}; the checkpoint and its config do not belong together"
            )
        weights[name] = tensor
    return weights


def _biases(model: Any, family: Family) -> Biases:
    def has_bias(site: str) -> bool:
        return getattr(family.site(model, 0, site), "bias", None) is not None  # type: ignore[arg-type]

    return Biases(query_key_value=has_bias("q"), output=has_bias("o"), mlp=has_bias("down"))


def _check_whole_head_turns(rotary: Any, spec: DecoderSpec) -> None:
    turned = 2 * rotary.inv_freq.numel()
    if turned != spec.head_dim:
        raise InputError(
            f"RoPE turns {turned} of {spec.head_dim} numbers of a head and cannot be exported; "
            "every one must be turned (partial_rotary_factor 1)"
        )


def _check_supported(config: Any) -> None:
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope_type not in STATIC_ROPE:
        raise InputError(
            f"RoPE of type {rope_type!r} changes with the sequence and cannot be exported; "
            f"we export {', '.join(STATIC_ROPE)}"
        )
    if config.hidden_act != "silu":
        raise InputError(f"activation {config.hidden_act!r} cannot be exported; we export silu")
    if getattr(config, "sliding_window", None) is not None:
        raise InputError(
            f"attention over a sliding window of {config.sliding_window} tokens cannot be "
            "exported; every layer must see the whole context"
        )
    windowed = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if windowed:
        raise InputError(
            f"layers with {', '.join(sorted(windowed))} cannot be exported; every layer must use "
            "full_attention"
        )
