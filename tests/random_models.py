"""Tiny models of each family with random weights and random proxies, so that no no-op can pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    MistralConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    SiglipVisionConfig,
)

from p2p_export import ProxySet
from p2p_export.models import DecoderSpec
from p2p_export.proxies import SITES, STREAMS, tensor_name

VOCABULARY = 61
IMAGE_TOKEN = 3
VIDEO_TOKEN = 4
PINPOINTS = [[32, 64], [64, 32], [64, 64]]
# RoPE as configs ask for it, scaled within the few positions that tests use.
ROPE: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


def clip_config() -> CLIPVisionConfig:
    """32-pixel images of 8-pixel patches: 16 visual tokens."""
    return CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=32,
        patch_size=8,
        projection_dim=32,
    )


def siglip_config(*, patch_size: int = 8) -> SiglipVisionConfig:
    """32-pixel images: 16 visual tokens of 8-pixel patches, and no class token."""
    return SiglipVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=32,
        patch_size=patch_size,
        vision_use_head=False,
    )


def text_values(layers: int, key_value_heads: int) -> dict[str, Any]:
    """What the text configs of all families have in common here."""
    return {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": key_value_heads,
        "vocab_size": VOCABULARY,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def llama_config(layers: int, *, key_value_heads: int = 4, **more: Any) -> LlamaConfig:
    return LlamaConfig(**{"head_dim": 16, **text_values(layers, key_value_heads), **more})


def mistral_config(layers: int, **more: Any) -> MistralConfig:
    """As Mistral 7B v0.2: grouped-query attention over the whole context."""
    values = {"sliding_window": None, **text_values(layers, 2), **more}
    return MistralConfig(**values)


def qwen2_config(layers: int, **more: Any) -> Qwen2Config:
    return Qwen2Config(**{**text_values(layers, 2), **more})


def random_llava(layers: int = 4, *, seed: int = 0, text: Any = None) -> Any:
    """LLaVA-1.5: multi-head attention, head_dim (16) other than hidden / heads (12)."""
    config = LlavaConfig(
        vision_config=clip_config(),
        text_config=text or llama_config(layers),
        image_token_index=IMAGE_TOKEN,
        image_seq_length=16,
    )
    return randomized(LlavaForConditionalGeneration(config), seed)


def random_llava_next(layers: int = 4, *, seed: int = 0, text: Any = None) -> Any:
    """LLaVA-NeXT with grouped-query attention."""
    config = LlavaNextConfig(
        vision_config=clip_config(),
        text_config=text or llama_config(layers, key_value_heads=2),
        image_token_index=IMAGE_TOKEN,
        image_grid_pinpoints=PINPOINTS,
    )
    return randomized(LlavaNextForConditionalGeneration(config), seed)


def random_llava_onevision(
    layers: int = 4, *, seed: int = 0, text: Any = None, patch_size: int = 8, **more: Any
) -> Any:
    """LLaVA-OneVision: SigLIP tiles, Qwen2 text model (grouped-query attention, q/k/v biases)."""
    config = LlavaOnevisionConfig(
        vision_config=siglip_config(patch_size=patch_size),
        text_config=text or qwen2_config(layers),
        image_token_index=IMAGE_TOKEN,
        video_token_index=VIDEO_TOKEN,
        image_grid_pinpoints=PINPOINTS,
        **more,
    )
    return randomized(LlavaOnevisionForConditionalGeneration(config), seed)


def random_qwen2_5_vl(
    layers: int = 4, *, seed: int = 0, rope: dict[str, Any] | None = None, **more: Any
) -> Any:
    """Qwen2.5-VL: grouped-query attention, biases, MRoPE."""
    config = Qwen2_5_VLConfig(
        text_config={
            **text_values(layers, 2),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 2, 2],
                **(rope or {}),
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 48,
            "patch_size": 8,
            "window_size": 32,
            "fullatt_block_indexes": [1],
        },
        image_token_id=IMAGE_TOKEN,
        video_token_id=VIDEO_TOKEN,
        vision_start_token_id=5,
        vision_end_token_id=6,
        **more,
    )
    return randomized(Qwen2_5_VLForConditionalGeneration(config), seed)


RANDOM_MODELS = {
    "llava": random_llava,
    "llava_next": random_llava_next,
    "qwen2_5_vl": random_qwen2_5_vl,
}


# One thing of each family's text model that RANDOM_MODELS does not have.
FAMILY_MODELS = {
    "llava_next, mistral, linear rope": lambda layers: random_llava_next(
        layers, text=mistral_config(layers, head_dim=16, rope_parameters=ROPE["linear"])
    ),
    "llava_onevision, tied head, yarn": lambda layers: random_llava_onevision(
        layers, text=qwen2_config(layers, tie_word_embeddings=True, rope_parameters=ROPE["yarn"])
    ),
    "llava_onevision, head_dim": lambda layers: random_llava_onevision(
        layers, text=qwen2_config(layers, head_dim=16)
    ),
    "llava, biases, llama3 rope": lambda layers: random_llava(
        layers,
        text=llama_config(
            layers, attention_bias=True, mlp_bias=True, rope_parameters=ROPE["llama3"]
        ),
    ),
    "qwen2_5_vl, tied head, yarn": lambda layers: random_qwen2_5_vl(
        layers, rope=ROPE["yarn"], tie_word_embeddings=True
    ),
}


def randomized(model: Any, seed: int) -> Any:
    """Every parameter random, norms and biases too: equal ones could stand in for each other."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(0.6 + 0.3 * noise)
            else:
                parameter.copy_(noise * 1.2 / parameter.shape[-1] ** 0.5)
    model.set_attn_implementation("eager")
    return model.eval()


def random_proxies(spec: DecoderSpec, *, seed: int = 0) -> ProxySet:
    """A vector for each layer, site and stream."""
    generator = np.random.default_rng(seed)
    return ProxySet(
        {
            tensor_name(layer, site, stream): generator.normal(size=spec.site_size(site)).astype(
                np.float32
            )
            for layer in range(spec.num_hidden_layers)
            for site in SITES
            for stream in STREAMS
        }
    )
