"""Samples into left-padded model inputs, through the model's own processor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from p2p_export.calibration.samples import Sample
from p2p_export.errors import InputError
from p2p_export.flops import Tokens
from p2p_export.models import Family
from p2p_export.plan import Newline


@dataclass(frozen=True)
class PromptBatch:
    """What a model reads for some samples. Padding is on the left.

    inputs: what the processor returned (`input_ids`, `attention_mask`, `pixel_values`, …).
    position_ids: int64 [B,S], or [3,B,S] with MRoPE. visual_mask: bool [B,S].
    """

    samples: tuple[Sample, ...]
    inputs: dict[str, Any]
    position_ids: torch.Tensor
    visual_mask: torch.Tensor

    @property
    def input_ids(self) -> torch.Tensor:
        ids: torch.Tensor = self.inputs["input_ids"]
        return ids

    @property
    def attention_mask(self) -> torch.Tensor:
        mask: torch.Tensor = self.inputs["attention_mask"]
        return mask

    @property
    def tokens(self) -> list[Tokens]:
        """Rows of each prompt, padding left out, and the visual ones among them."""
        totals, visuals = self.attention_mask.sum(1).tolist(), self.visual_mask.sum(1).tolist()
        return [Tokens(total, visual) for total, visual in zip(totals, visuals, strict=True)]


@dataclass(frozen=True)
class Prompter:
    """Prepares samples for one model. `newline` says whether image_newline rows are visual."""

    processor: Any
    family: Family
    config: Any
    newline: Newline = "visual"

    def batches(self, samples: Sequence[Sample], batch_size: int) -> Iterator[PromptBatch]:
        """`prepare` for consecutive groups of `batch_size` samples."""
        for start in range(0, len(samples), batch_size):
            yield self.prepare(samples[start : start + batch_size])

    def prepare(self, samples: Sequence[Sample]) -> PromptBatch:
        """One batch; `InputError` when a prompt leaves no place for its image."""
        texts = [self.text(sample) for sample in samples]
        tokenizer = self.processor.tokenizer
        tokenizer.padding_side = "left"
        bos = getattr(tokenizer, "bos_token", None)
        written = bos is not None and all(text.startswith(bos) for text in texts)
        try:
            inputs = self.processor(
                images=[sample.image.load() for sample in samples],
                text=texts,
                padding=True,
                return_tensors="pt",
                # The template writes the first token itself; a second one would change answers.
                **({"add_special_tokens": False} if written else {}),
            )
        except (ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"the processor refuses {samples[0].id} to {samples[-1].id}: "
                f"{str(error).splitlines()[0]}"
            ) from None
        return self._batch(tuple(samples), dict(inputs))

    def text(self, sample: Sample) -> str:
        """The prompt of a sample: the chat template around image and question, if there is one."""
        self.check_questions([sample])
        placeholder = self.image_placeholder
        if getattr(self.processor, "chat_template", None) is None:
            return f"{placeholder}\n{sample.question}"
        content = [{"type": "image"}, {"type": "text", "text": sample.question}]
        text = str(
            self.processor.apply_chat_template(
                [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
            )
        )
        if text.count(placeholder) != 1:
            raise InputError(
                f"the model's chat template leaves {text.count(placeholder)} places for one image "
                f"({placeholder!r} in the prompt); use a processor whose template takes an image"
            )
        return text

    def check_questions(self, samples: Sequence[Sample]) -> None:
        """Raise `InputError` for a question that spells out a token which stands for an image."""
        reserved = self._placeholders()
        for sample in samples:
            for placeholder in reserved:
                if placeholder in sample.question:
                    raise InputError(
                        f"{sample.id}: the question holds {placeholder!r}, which stands for an "
                        "image; take it out, the image is placed by itself"
                    )

    @property
    def image_placeholder(self) -> str:
        """The text that the processor replaces with an image's tokens."""
        return self._placeholders()[0]

    def _placeholders(self) -> list[str]:
        """Texts of the visual tokens, the image's first."""
        ids = list(self.family.visual_token_ids(self.config))
        texts = self.processor.tokenizer.convert_ids_to_tokens(ids)
        if texts[0] is None:
            raise InputError(
                f"the tokenizer knows no token {ids[0]}, which by the config stands for an image; "
                "use the processor that belongs to the model"
            )
        return [str(text) for text in texts if text is not None]

    def _batch(self, samples: tuple[Sample, ...], inputs: dict[str, Any]) -> PromptBatch:
        input_ids = inputs["input_ids"].numpy().astype(np.int64)
        mask = self.family.visual_mask(input_ids, self.config, inputs, newline=self.newline)
        images = np.isin(input_ids, self.family.visual_token_ids(self.config))
        if not images.any(axis=1).all():
            bare = samples[int(np.argmin(images.any(axis=1)))]
            raise InputError(
                f"the processor made no image tokens for {bare.id}; use the processor that belongs "
                "to the model"
            )
        attention_mask = inputs["attention_mask"].numpy().astype(np.int64)
        positions = self.family.position_ids(input_ids, attention_mask, self.config, inputs)
        return PromptBatch(samples, inputs, torch.from_numpy(positions), torch.from_numpy(mask))
