"""The shapes of published checkpoints: what their configs describe, its FLOPs, and its graphs.

No weights are made of that size.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from random_models import random_proxies
from rewritten_decoders import plan

from p2p_export.flops import Tokens, p2p_flops
from p2p_export.graphs import export, rewrite_decoder
from p2p_export.graphs.weights import WeightLocation
from p2p_export.models.checkpoint import Checkpoint, find_checkpoint

QWEN = {
    "model_type": "qwen2_5_vl",
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "hidden_act": "silu",
    "max_position_embeddings": 128000,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "sliding_window": 32768,
    "use_sliding_window": False,
}
QWEN_VISION = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "patch_size": 14,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
LLAVA_VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "image_size": 336,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "patch_size": 14,
    "projection_dim": 768,
    "vocab_size": 32000,
}
SIGLIP_VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "image_size": 384,
    "num_attention_heads": 16,
    "num_hidden_layers": 26,
    "patch_size": 14,
    "vision_use_head": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen2.5-VL-3B": {
        **QWEN,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "max_window_layers": 70,
        "num_attention_heads": 16,
        "num_hidden_layers": 36,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "vision_config": {**QWEN_VISION, "out_hidden_size": 2048},
        "vocab_size": 151936,
    },
    "Qwen2.5-VL-7B": {
        **QWEN,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_window_layers": 28,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "vision_config": {**QWEN_VISION, "out_hidden_size": 3584},
        "vocab_size": 152064,
    },
    "LLaVA-1.5-13B": {
        "model_type": "llava",
        "image_token_index": 32000,
        "text_config": {
            "model_type": "llama",
            "hidden_size": 5120,
            "intermediate_size": 13824,
            "max_position_embeddings": 4096,
            "num_attention_heads": 40,
            "num_hidden_layers": 40,
            "num_key_value_heads": 40,
            "rms_norm_eps": 1e-05,
            "vocab_size": 32064,
        },
        "vision_config": LLAVA_VISION,
    },
    "LLaVA-1.6-Mistral-7B": {
        "model_type": "llava_next",
        "image_token_index": 32000,
        "text_config": {
            "model_type": "mistral",
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "num_key_value_heads": 8,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "vocab_size": 32064,
        },
        "vision_config": LLAVA_VISION,
    },
    "LLaVA-OneVision-7B": {
        "model_type": "llava_onevision",
        "image_token_index": 151646,
        "video_token_index": 151647,
        "text_config": {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "max_position_embeddings": 32768,
            "max_window_layers": 28,
            "num_attention_heads": 28,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": 131072,
            "use_sliding_window": False,
            "vocab_size": 152000,
        },
        "vision_config": SIGLIP_VISION,
    },
}
# hidden, intermediate, heads, key/value heads, head size, layers, vocabulary.
SHAPES = {
    "Qwen2.5-VL-3B": (2048, 11008, 16, 2, 128, 36, 151936),
    "Qwen2.5-VL-7B": (3584, 18944, 28, 4, 128, 28, 152064),
    "LLaVA-1.5-13B": (5120, 13824, 40, 40, 128, 40, 32064),
    "LLaVA-1.6-Mistral-7B": (4096, 14336, 32, 8, 128, 32, 32064),
    "LLaVA-OneVision-7B": (3584, 18944, 28, 4, 128, 28, 152000),
}
# FLOPs a prompt row, and a row squared, worked out from docs/flops.md by hand.
POLYNOMIALS = {
    "Qwen2.5-VL-3B": (5.549e9, 0.2949e6),
    "Qwen2.5-VL-7B": (13.051e9, 0.4014e6),
    "LLaVA-1.5-13B": (25.376e9, 0.8192e6),
    "LLaVA-1.6-Mistral-7B": (13.959e9, 0.5243e6),
    "LLaVA-OneVision-7B": (13.051e9, 0.4014e6),
}


def checkpoint_of(name: str, folder: Path) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    return find_checkpoint(str(folder))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_spec_is_what_the_config_says(name: str, tmp_path: Path) -> None:
    spec = checkpoint_of(name, tmp_path).spec
    assert (
        spec.hidden_size,
        spec.intermediate_size,
        spec.num_attention_heads,
        spec.num_key_value_heads,
        spec.head_dim,
        spec.num_hidden_layers,
        spec.vocab_size,
    ) == SHAPES[name]
    assert spec.mrope_section == ((16, 24, 24) if name.startswith("Qwen") else ())


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rows", [401, 2296])
def test_flops_are_the_documented_formula(name: str, rows: int, tmp_path: Path) -> None:
    hidden, inner, heads, kv_heads, size, layers, vocabulary = SHAPES[name]
    per_row = 2 * hidden * heads * size + 2 * hidden * kv_heads * size + 3 * hidden * inner
    dense = layers * (2 * rows * per_row + 4 * rows * rows * heads * size) + 2 * hidden * vocabulary
    spec = checkpoint_of(name, tmp_path).spec
    assert p2p_flops(spec, Tokens(rows, rows // 2)) == dense
    linear, quadratic = POLYNOMIALS[name]
    head = 2 * hidden * vocabulary
    assert dense == pytest.approx(linear * rows + quadratic * rows**2 + head, rel=2e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_planned_layer_saves_what_the_documented_formula_says(name: str, tmp_path: Path) -> None:
    hidden, inner, heads, kv_heads, size, layers, _ = SHAPES[name]
    rows, visual = 1000, 900
    text = rows - visual
    per_row = 2 * hidden * heads * size + 2 * hidden * kv_heads * size + 3 * hidden * inner
    saved = 2 * visual * per_row + 4 * rows * visual * heads * size
    keys_and_values = 2 * 2 * visual * hidden * kv_heads * size
    spec, tokens = checkpoint_of(name, tmp_path).spec, Tokens(rows, visual)
    dense = p2p_flops(spec, tokens)
    assert text == 100
    assert dense - p2p_flops(spec, tokens, {layers - 1: "proxy"}) == saved
    assert dense - p2p_flops(spec, tokens, {layers - 1: "frozen"}) == saved - keys_and_values


def meta_model(checkpoint: Checkpoint) -> Any:
    """Every weight on the meta device; RoPE's frequencies, which the graph holds, are real."""
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(checkpoint.config)
    text = model.model.language_model
    text.rotary_emb = type(text.rotary_emb)(text.config)
    return model.eval()


def describe_weights(path: Path, tensors: Any, dtype: torch.dtype) -> dict[str, WeightLocation]:
    """Where each tensor would lie; the file is a hole of that size."""
    end, locations = 0, {}
    for name, tensor in tensors.items():
        length = tensor.numel() * dtype.itemsize
        locations[name] = WeightLocation(end, length, tuple(tensor.shape), dtype)
        end += length
    with open(path, "wb") as file:
        file.truncate(end)
    return locations


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_decoder_of_this_size_exports_and_rewrites_without_its_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoint_of(name, tmp_path)
    spec = checkpoint.spec
    model = meta_model(checkpoint)
    monkeypatch.setattr(export, "write_weights", describe_weights)
    dense = export.export_decoder(model, checkpoint.family, spec, tmp_path, precision="fp16")
    modes = {i: "frozen" if i % 7 == 0 else "proxy" for i in range(3, spec.num_hidden_layers)}
    # What `proxy` and `frozen` need, without the 200 MB that every site's would be.
    proxies = random_proxies(replace(spec, intermediate_size=1))
    for lowering in ("literal", "fused", "elided"):
        pruned = tmp_path / f"{lowering}.onnx"
        rewrite_decoder(dense, plan(modes), proxies, pruned, lowering=lowering)
        graph = onnx.load(pruned, load_external_data=False)
        # Strict: widths that do not fit one another raise.
        onnx.shape_inference.infer_shapes(graph, check_type=True, strict_mode=True)
        outputs = {output.name: output for output in graph.graph.output}
        assert len(outputs) == 1 + 2 * spec.num_hidden_layers
        for layer in range(spec.num_hidden_layers):
            dims = outputs[f"present.{layer}.key"].type.tensor_type.shape.dim
            heads = (dims[1].dim_value, dims[3].dim_value)
            assert heads == (spec.num_key_value_heads, spec.head_dim)
        assert pruned.stat().st_size < 32 * 2**20
