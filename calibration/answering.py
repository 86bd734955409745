"""Greedy answers from a decoder batch, under whatever patch is active."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from p2p_export.calibration.embedding import DecoderBatch
from p2p_export.calibration.loaded_model import LoadedModel
from p2p_export.calibration.samples import Sample
from p2p_export.models.positions import next_position_ids

# Room for a short answer, when the right answers are longer than one token.
LONG_ANSWER_TOKENS = 16


def answer_tokens_needed(tokenizer: Any, samples: Sequence[Sample]) -> int:
    """1 when every right answer is a single token for this tokenizer, else a short answer's."""
    answers = {answer for sample in samples for answer in sample.answers}
    single = all(
        len(tokenizer(answer, add_special_tokens=False)["input_ids"]) == 1 for answer in answers
    )
    return 1 if single else LONG_ANSWER_TOKENS


def answer(loaded: LoadedModel, batch: DecoderBatch, max_new_tokens: int) -> list[str]:
    """One answer per sample: greedy, up to `max_new_tokens` or the end-of-answer token."""
    with torch.no_grad():
        if max_new_tokens == 1:
            hidden = _decode(loaded, batch.inputs_embeds, batch.attention_mask, batch.position_ids)
            return first_token_answers(loaded, hidden.last_hidden_state[:, -1])
        ids = _greedy(loaded, batch, max_new_tokens)
    return [_text(loaded, row) for row in ids.tolist()]


def first_token_answers(loaded: LoadedModel, hidden: torch.Tensor) -> list[str]:
    """The most likely token of each answer position; `hidden` [B,D] is behind the final norm."""
    tokens = loaded.head(hidden).argmax(-1)
    return [_text(loaded, [token]) for token in tokens.tolist()]


def _greedy(loaded: LoadedModel, batch: DecoderBatch, max_new_tokens: int) -> torch.Tensor:
    """int64 [B, <=max_new_tokens]; behind an end-of-answer token a row repeats it."""
    ends = torch.tensor(sorted(loaded.end_of_answer_ids), dtype=torch.long)
    embeds, mask, positions = batch.inputs_embeds, batch.attention_mask, batch.position_ids
    cache_name = cache_keyword(loaded.decoder)
    cache: Any = None
    chosen: list[torch.Tensor] = []
    ended = torch.zeros(len(batch.samples), dtype=torch.bool)
    for _ in range(max_new_tokens):
        output = _decode(loaded, embeds, mask, positions, use_cache=True, **{cache_name: cache})
        cache = getattr(output, cache_name)
        token = loaded.head(output.last_hidden_state[:, -1]).argmax(-1)
        if chosen:
            token = torch.where(ended, chosen[-1], token)
        chosen.append(token)
        ended |= torch.isin(token, ends)
        if ended.all():
            break
        embeds = loaded.model.get_input_embeddings()(token[:, None])
        mask = torch.cat([mask, mask.new_ones(len(token), 1)], dim=1)
        following = next_position_ids(loaded.family.position_scheme, positions.numpy())
        positions = torch.from_numpy(np.ascontiguousarray(following))
    return torch.stack(chosen, dim=1)


def cache_keyword(decoder: torch.nn.Module) -> str:
    """What this transformers calls the cache: the wrong name would be swallowed in silence."""
    return (
        "cache" if "cache" in inspect.signature(decoder.forward).parameters else "past_key_values"
    )


def _decode(
    loaded: LoadedModel,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor,
    position_ids: torch.Tensor,
    **options: Any,
) -> Any:
    return loaded.decoder(
        inputs_embeds=inputs_embeds,
        attention_mask=attention_mask,
        position_ids=position_ids,
        **{"use_cache": False, **options},
    )


def _text(loaded: LoadedModel, tokens: list[int]) -> str:
    return str(loaded.processor.tokenizer.decode(tokens, skip_special_tokens=True)).strip()
