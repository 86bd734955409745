"""What every vision part gives to be exported: a meta module, example inputs, weights, facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from p2p_export.errors import InputError
from p2p_export.graphs.meta_export import export_from_meta
from p2p_export.models.vision import VisionInfo

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": lambda hidden: hidden * torch.sigmoid(1.702 * hidden),
    "gelu": nn.functional.gelu,
    "gelu_pytorch_tanh": lambda hidden: nn.functional.gelu(hidden, approximate="tanh"),
    "silu": nn.functional.silu,
}


@dataclass(frozen=True)
class VisionTower:
    """`module` on the meta device; `weights` by its parameter names; `constants` stay float32."""

    module: nn.Module
    info: VisionInfo
    example: tuple[Tensor, ...]
    dynamic_shapes: tuple[Mapping[int, Any], ...]
    weights: Mapping[str, Tensor]
    constants: Mapping[str, Tensor] = field(default_factory=dict)

    def export(self) -> ir.Model:
        return export_from_meta(
            self.module,
            self.example,
            input_names=self.info.inputs,
            output_names=["image_features"],
            dynamic_shapes=self.dynamic_shapes,
        )

    def to_proto(self, graph: ir.Model) -> onnx.ModelProto:
        """The graph with its small constants inline; its weights are attached already."""
        for name, value in self.constants.items():
            array = value.detach().float().cpu().numpy()
            graph.graph.initializers[name].const_value = ir.tensor(array, name=name)
        return ir.to_proto(graph)


class Activation(nn.Module):
    """The activation a config names, or `InputError` when it is not one we export."""

    def __init__(self, name: str) -> None:
        super().__init__()
        if name not in ACTIVATIONS:
            raise InputError(
                f"activation {name!r} of the vision part cannot be exported; "
                f"we export {', '.join(ACTIVATIONS)}"
            )
        self.name = name

    def forward(self, hidden: Tensor) -> Tensor:
        return ACTIVATIONS[self.name](hidden)


class LayerNorm(nn.LayerNorm):
    """Layer norm in float32 whatever the weights' dtype."""

    def forward(self, input: Tensor) -> Tensor:
        normed = nn.functional.layer_norm(
            input.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps
        )
        return normed.to(input.dtype)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax attention over [...,heads,rows,head_dim], softmax in float32; `mask` is added."""
    scores = (query * query.shape[-1] ** -0.5 @ key.transpose(-1, -2)).float()
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1).to(value.dtype) @ value


def matching_weights(module: nn.Module, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`module`'s parameters from `found`, in the module's order; `InputError` when they differ."""
    weights = {}
    for name, parameter in module.named_parameters():
        if name not in found or found[name].numel() != parameter.numel():
            have = list(found[name].shape) if name in found else "is missing"
            raise InputError(
                f"vision weight {name} {have} where the config says {list(parameter.shape)}; "
                "the checkpoint and its config do not belong together"
            )
        weights[name] = found[name].reshape(parameter.shape)
    return weights
