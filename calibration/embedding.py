"""Vision tower and token embedding, run once: what the decoder reads."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from p2p_export.calibration.loaded_model import LoadedModel
from p2p_export.calibration.prompting import PromptBatch
from p2p_export.calibration.samples import Sample
from p2p_export.errors import InputError


@dataclass(frozen=True)
class DecoderBatch:
    """The decoder's inputs for some prompts, left-padded.

    inputs_embeds: float [B,S,D], image features in place. attention_mask: int64 [B,S].
    position_ids: int64 [B,S] or [3,B,S]. visual_mask: bool [B,S].
    """

    samples: tuple[Sample, ...]
    inputs_embeds: torch.Tensor
    attention_mask: torch.Tensor
    position_ids: torch.Tensor
    visual_mask: torch.Tensor

    @property
    def text_mask(self) -> torch.Tensor:
        """bool [B,S]: real rows that are not visual."""
        return self.attention_mask.bool() & ~self.visual_mask


class _StoppedError(Exception):
    """Ends the model's forward where the decoder would start; carries what it would read."""

    def __init__(self, inputs_embeds: torch.Tensor) -> None:
        super().__init__()
        self.inputs_embeds = inputs_embeds


def embed(loaded: LoadedModel, prompts: PromptBatch) -> DecoderBatch:
    """Run everything in front of the decoder, as the model itself does it.

    Raises `InputError` when the model refuses the processor's inputs (image tokens and image
    features that differ in number, say).
    """
    accepted = inspect.signature(loaded.model.forward).parameters
    inputs = {name: value for name, value in prompts.inputs.items() if name in accepted}
    inputs["position_ids"] = prompts.position_ids
    handle = loaded.decoder.register_forward_pre_hook(_stop, with_kwargs=True)
    try:
        with torch.no_grad():
            loaded.model(**inputs, use_cache=False)
    except _StoppedError as stopped:
        return DecoderBatch(
            prompts.samples,
            stopped.inputs_embeds,
            prompts.attention_mask,
            prompts.position_ids,
            prompts.visual_mask,
        )
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"the model refuses {prompts.samples[0].id} to {prompts.samples[-1].id}: "
            f"{str(error).splitlines()[0]}"
        ) from None
    finally:
        handle.remove()
    raise InputError(f"{type(loaded.model).__name__} never called its decoder; we cannot read it")


def _stop(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
    raise _StoppedError(kwargs["inputs_embeds"])
