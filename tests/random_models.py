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
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from p2p_export import ProxySet
from p2p_export.models import DecoderSpec
from p2p_export.proxies import SITES, STREAMS, tensor_name

VOCABULARY = 61
IMAGE_TOKEN = 3


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


def llama_config(layers: int, *, key_value_heads: int = 4, **more: Any) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=key_value_heads,
        head_dim=16,
        vocab_size=VOCABULARY,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **more,
    )


def random_llava(layers: int = 4, *, seed: int = 0) -> Any:
    """LLaVA-1.5: multi-head attention, head_dim (16) other than hidden / heads (12)."""
    config = LlavaConfig(
        vision_config=clip_config(),
        text_config=llama_config(layers),
        image_token_index=IMAGE_TOKEN,
        image_seq_length=16,
    )
    return randomized(LlavaForConditionalGeneration(config), seed)


def random_llava_next(layers: int = 4, *, seed: int = 0) -> Any:
    """LLaVA-NeXT with grouped-query attention."""
    config = LlavaNextConfig(
        vision_config=clip_config(),
        text_config=llama_config(layers, key_value_heads=2),
        image_token_index=IMAGE_TOKEN,
        image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]],
    )
    return randomized(LlavaNextForConditionalGeneration(config), seed)


def random_qwen2_5_vl(layers: int = 4, *, seed: int = 0) -> Any:
    """Qwen2.5-VL: grouped-query attention, biases, MRoPE."""
    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": VOCABULARY,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 2, 2],
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
        video_token_id=4,
        vision_start_token_id=5,
        vision_end_token_id=6,
    )
    return randomized(Qwen2_5_VLForConditionalGeneration(config), seed)


RANDOM_MODELS = {
    "llava": random_llava,
    "llava_next": random_llava_next,
    "qwen2_5_vl": random_qwen2_5_vl,
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
