"""The shape of a decoder: what graphs, FLOPs and checks need to know of a text model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from p2p_export.proxies import Site


@dataclass(frozen=True)
class DecoderSpec:
    """A Llama-like decoder: RMSNorm, RoPE, grouped-query attention, gated SiLU MLP."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    # Rows of `position_ids`: 1 for [B,S], 3 for MRoPE's [3,B,S] (temporal, height, width).
    position_axes: int = 1
    # Frequencies per axis, summing to head_dim / 2; empty for plain RoPE.
    mrope_section: tuple[int, ...] = ()

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    def site_size(self, site: Site) -> int:
        """Width of the linear output at `site`."""
        sizes: dict[Site, int] = {
            "q": self.query_size,
            "k": self.key_value_size,
            "v": self.key_value_size,
            "o": self.hidden_size,
            "gate": self.intermediate_size,
            "up": self.intermediate_size,
            "down": self.hidden_size,
        }
        return sizes[site]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "mrope_section": list(self.mrope_section)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DecoderSpec:
        return cls(**{**values, "mrope_section": tuple(values.get("mrope_section", ()))})
