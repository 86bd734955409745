"""The oracle of the rewrite: transformers' own decoder, its sites overwritten by forward hooks.

It shares no code with the package: the sites' rows are overwritten as the words of DESIGN §2 say.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

SITE_PATHS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


@dataclass(frozen=True)
class Chunk:
    """One call: embeddings [B,S,D], positions [B,S] or [3,B,S], visual rows and mask [B,S]."""

    inputs_embeds: np.ndarray
    position_ids: np.ndarray
    visual: np.ndarray
    attention_mask: np.ndarray


def hooked_logits(
    model: Any, modes: dict[int, str], vectors: Any, chunks: Sequence[Chunk]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Logits [B,vocab] of the last position of each chunk, and the final keys of each layer.

    Embeddings and proxies are converted to the model's own dtype.
    """
    decoder = model.model.language_model
    current: dict[str, torch.Tensor] = {}
    handles = []
    for layer, mode in modes.items():
        sites = {"dense": (), "frozen": ("q", "o", "gate", "up", "down"), "proxy": SITE_PATHS}[mode]
        for site in sites:
            vector = torch.tensor(vectors[f"layers.{layer}.{site}.image"]).to(model.dtype)

            def overwrite(_module: Any, _inputs: Any, output: Any, vector: Any = vector) -> Any:
                return torch.where(current["visual"][..., None], vector, output)

            linear = decoder.layers[layer].get_submodule(SITE_PATHS[site])
            handles.append(linear.register_forward_hook(overwrite))
    cache = DynamicCache()
    keyword = "cache" if "cache" in inspect.signature(decoder.forward).parameters else None
    mask = np.zeros((chunks[0].inputs_embeds.shape[0], 0), dtype=np.int64)
    logits = []
    try:
        for chunk in chunks:
            current["visual"] = torch.tensor(chunk.visual)
            mask = np.concatenate([mask, chunk.attention_mask], axis=1)
            with torch.no_grad():
                output = decoder(
                    inputs_embeds=torch.tensor(chunk.inputs_embeds).to(model.dtype),
                    attention_mask=torch.tensor(mask),
                    position_ids=torch.tensor(chunk.position_ids),
                    use_cache=True,
                    **{keyword or "past_key_values": cache},
                )
                logits.append(model.lm_head(output.last_hidden_state[:, -1]).float().numpy())
    finally:
        for handle in handles:
            handle.remove()
    return logits, [layer.keys.float().numpy() for layer in cache.layers]
