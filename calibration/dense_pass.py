"""One dense forward pass, taken apart at the layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from p2p_export.calibration.embedding import DecoderBatch
from p2p_export.calibration.loaded_model import LoadedModel


@dataclass(frozen=True)
class DensePass:
    """What each decoder layer was given, and what came out.

    entries[i]: the hidden states layer i read, [B,S,D]. arguments[i]: its keyword arguments
    (mask, rotary embeddings, …). answer: the last row behind the final norm, [B,D].
    """

    entries: tuple[torch.Tensor, ...]
    arguments: tuple[dict[str, Any], ...]
    answer: torch.Tensor


def dense_pass(loaded: LoadedModel, batch: DecoderBatch) -> DensePass:
    """Run the decoder once and keep each layer's input and arguments."""
    entries: list[torch.Tensor] = []
    arguments: list[dict[str, Any]] = []

    def keep(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rest = dict(kwargs)
        entries.append(args[0] if args else rest.pop("hidden_states"))
        arguments.append(rest)

    handles = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in loaded.layers]
    try:
        output = loaded.decoder(
            inputs_embeds=batch.inputs_embeds,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
        )
    finally:
        for handle in handles:
            handle.remove()
    return DensePass(tuple(entries), tuple(arguments), output.last_hidden_state[:, -1])
