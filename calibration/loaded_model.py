"""A checkpoint in memory: model, processor, and what is known of its family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from p2p_export.models import DecoderSpec, Family
from p2p_export.models.checkpoint import Checkpoint, load_model, load_processor


@dataclass(frozen=True)
class LoadedModel:
    """A transformers model in eval mode with its processor."""

    model: Any
    processor: Any
    family: Family

    @classmethod
    def load(cls, checkpoint: Checkpoint, *, trust_remote_code: bool = False) -> LoadedModel:
        """Load processor and weights (float32, eager attention); `InputError` if either fails."""
        processor = load_processor(checkpoint, trust_remote_code=trust_remote_code)
        return cls(load_model(checkpoint), processor, checkpoint.family)

    @property
    def spec(self) -> DecoderSpec:
        return self.family.decoder_spec(self.model.config)

    @property
    def decoder(self) -> nn.Module:
        return self.family.decoder(self.model)

    @property
    def layers(self) -> Sequence[nn.Module]:
        return self.family.decoder_layers(self.model)

    @property
    def head(self) -> nn.Module:
        head: nn.Module = self.model.get_submodule(self.family.head)
        return head

    @property
    def end_of_answer_ids(self) -> frozenset[int]:
        """Token ids that end an answer, as `generate` knows them."""
        eos = self.model.generation_config.eos_token_id
        if eos is None:
            eos = self.model.config.get_text_config().eos_token_id
        ids = eos if isinstance(eos, list) else [eos]
        return frozenset(int(i) for i in ids if i is not None)
