"""Running single decoder layers: transformers' own modules, with the arguments it gave them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from p2p_export.calibration.embedding import DecoderBatch
from p2p_export.calibration.loaded_model import LoadedModel


@dataclass(frozen=True)
class DensePass:
    """One dense forward pass, taken apart.

    entries[i]: what layer i read, [B,S,D]. arguments[i]: the keyword arguments it was called with
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


def run_layers(
    loaded: LoadedModel, dense: DensePass, hidden_states: torch.Tensor, layers: Iterable[int]
) -> torch.Tensor:
    """Pass `hidden_states` [B,S,D] through `layers`, in order, under whatever patch is active."""
    modules = loaded.layers
    for layer in layers:
        output = modules[layer](hidden_states, **dense.arguments[layer])
        hidden_states = output[0] if isinstance(output, tuple) else output
    return hidden_states


def answer_row(loaded: LoadedModel, hidden_states: torch.Tensor) -> torch.Tensor:
    """[B,S,D] behind the last layer -> [B,D]: the last row behind the final norm."""
    row: torch.Tensor = loaded.decoder.get_submodule("norm")(hidden_states[:, -1])
    return row
