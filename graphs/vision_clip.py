"""CLIP tower and LLaVA's projector, as one module: what LLaVA-1.5 does to an image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from p2p_export.errors import InputError
from p2p_export.graphs.vision_tower import (
    Activation,
    LayerNorm,
    VisionTower,
    attend,
    matching_weights,
)
from p2p_export.models.vision import VisionInfo


class Embeddings(nn.Module):
    """[images,3,H,W] -> [images, 1+patches, D]: class embedding first, positions added."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        size, patch = config.hidden_size, config.patch_size
        self.class_embedding = nn.Parameter(torch.empty(size))
        self.patch_embedding = nn.Conv2d(
            config.num_channels, size, kernel_size=patch, stride=patch, bias=False
        )
        self.position_embedding = nn.Embedding((config.image_size // patch) ** 2 + 1, size)

    def forward(self, pixel_values: Tensor) -> Tensor:
        pixels = pixel_values.to(self.patch_embedding.weight.dtype)
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(patches.shape[0], 1, -1)
        return torch.cat((first, patches), dim=1) + self.position_embedding.weight


class Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        size = config.hidden_size
        self.heads = config.num_attention_heads
        self.q_proj, self.k_proj = nn.Linear(size, size), nn.Linear(size, size)
        self.v_proj, self.out_proj = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (
            projection(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed: Tensor = self.out_proj(attend(query, key, value).transpose(1, 2).flatten(2))
        return mixed


class MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = Activation(config.hidden_act)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        widened: Tensor = self.fc2(self.activation(self.fc1(hidden)))
        return widened


class EncoderLayer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layer_norm1 = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.self_attn = Attention(config)
        self.layer_norm2 = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = MLP(config)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(self.layer_norm1(hidden))
        added: Tensor = hidden + self.mlp(self.layer_norm2(hidden))
        return added


class Encoder(nn.Module):
    def __init__(self, config: Any, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(layers))


class Projector(nn.Module):
    def __init__(self, config: Any, features: int) -> None:
        super().__init__()
        bias, text_size = config.multimodal_projector_bias, config.text_config.hidden_size
        self.linear_1 = nn.Linear(features, text_size, bias=bias)
        self.activation = Activation(config.projector_hidden_act)
        self.linear_2 = nn.Linear(text_size, text_size, bias=bias)

    def forward(self, features: Tensor) -> Tensor:
        projected: Tensor = self.linear_2(self.activation(self.linear_1(features)))
        return projected


class ClipProjector(nn.Module):
    """`selected` are the hidden states the projector reads: 0 the embeddings, i behind layer i."""

    def __init__(self, config: Any, selected: tuple[int, ...], *, keep_class: bool) -> None:
        super().__init__()
        vision = config.vision_config
        self.embeddings = Embeddings(vision)
        self.pre_layrnorm = LayerNorm(vision.hidden_size, eps=vision.layer_norm_eps)
        self.encoder = Encoder(vision, max(selected))
        self.projector = Projector(config, len(selected) * vision.hidden_size)
        self.selected = selected
        self.keep_class = keep_class

    def forward(self, pixel_values: Tensor) -> Tensor:
        hidden = self.pre_layrnorm(self.embeddings(pixel_values))
        states = [hidden]
        for layer in self.encoder.layers:
            hidden = layer(hidden)
            states.append(hidden)
        features = torch.cat([states[i] for i in self.selected], dim=-1)
        if not self.keep_class:
            features = features[:, 1:]
        projected: Tensor = self.projector(features)
        return projected


def build(model: Any, dtype: torch.dtype) -> VisionTower:
    """The tower of a LLaVA-1.5 model; layers behind the last one the projector reads stay out."""
    config = model.config
    vision = config.vision_config
    if vision.model_type != "clip_vision_model":
        raise InputError(
            f"a vision tower of type {vision.model_type!r} cannot be exported (we export "
            "clip_vision_model); use --only decoder and run its vision part yourself"
        )
    layers = config.vision_feature_layer
    layers = [layers] if isinstance(layers, int) else layers
    selected = tuple(i if i >= 0 else vision.num_hidden_layers + 1 + i for i in layers)
    keep_class = config.vision_feature_select_strategy == "full"
    with torch.device("meta"):
        module = ClipProjector(config, selected, keep_class=keep_class).to(dtype)
        side = vision.image_size
        example = torch.empty(2, vision.num_channels, side, side)
    return VisionTower(
        module=module,
        info=VisionInfo(
            kind="clip-projector",
            inputs=("pixel_values",),
            rows_per_image=(side // vision.patch_size) ** 2 + keep_class,
        ),
        example=(example,),
        dynamic_shapes=({0: torch.export.Dim("images")},),
        weights=matching_weights(module, _checkpoint_weights(model)),
    )


def _checkpoint_weights(model: Any) -> dict[str, Tensor]:
    tower = model.get_submodule("model.vision_tower")
    # Older transformers keep the tower one module deeper.
    tower = getattr(tower, "vision_model", tower)
    projector = model.get_submodule("model.multi_modal_projector").state_dict()
    return {
        **tower.state_dict(),
        **{f"projector.{name}": tensor for name, tensor in projector.items()},
    }
