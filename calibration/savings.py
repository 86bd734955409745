"""What a plan saves on the prompts it was measured on: FLOPs by both conventions, cache bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from p2p_export.flops import Tokens, kv_cache_bytes, needed_flops, p2p_flops
from p2p_export.models import DecoderSpec
from p2p_export.plan import Mode


@dataclass(frozen=True)
class DenseAndPlanned:
    """One quantity of a prompt, for the dense and for the planned decoder."""

    dense: float
    planned: float

    def to_dict(self) -> dict[str, float]:
        return {"dense": self.dense, "planned": self.planned, "ratio": self.planned / self.dense}


@dataclass(frozen=True)
class Savings:
    """FLOPs of a prefill and bytes of its KV cache, for a prompt of the mean length `tokens`.

    Cache entries are float16. With lowering `fused` every layer keeps all tokens, planned or not;
    with `elided` a `proxy` layer keeps no visual ones.
    """

    tokens: Tokens
    p2p: DenseAndPlanned
    needed: DenseAndPlanned
    kv_cache_fused: DenseAndPlanned
    kv_cache_elided: DenseAndPlanned

    @classmethod
    def of(
        cls, spec: DecoderSpec, prompts: Sequence[Tokens], layers: Mapping[int, Mode]
    ) -> Savings:
        """Savings at the mean lengths of `prompts`."""
        mean = Tokens(
            total=sum(prompt.total for prompt in prompts) / len(prompts),
            visual=sum(prompt.visual for prompt in prompts) / len(prompts),
        )
        cache = kv_cache_bytes(spec, mean, itemsize=2)
        elided = kv_cache_bytes(spec, mean, itemsize=2, elided=layers)
        return cls(
            mean,
            DenseAndPlanned(p2p_flops(spec, mean), p2p_flops(spec, mean, layers)),
            DenseAndPlanned(needed_flops(spec, mean), needed_flops(spec, mean, layers)),
            DenseAndPlanned(cache, cache),
            DenseAndPlanned(cache, elided),
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "tokens": {"mean_total": self.tokens.total, "mean_visual": self.tokens.visual},
            "p2p": self.p2p.to_dict(),
            "needed": self.needed.to_dict(),
            "kv_cache_bytes_fp16": {
                "fused": self.kv_cache_fused.to_dict(),
                "elided": self.kv_cache_elided.to_dict(),
            },
        }
