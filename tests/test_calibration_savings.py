"""What a plan saves, counted by hand for one small shape."""

from __future__ import annotations

import pytest

from p2p_export.calibration.savings import Savings
from p2p_export.flops import Tokens
from p2p_export.models import DecoderSpec

SPEC = DecoderSpec(
    num_hidden_layers=2,
    hidden_size=8,
    intermediate_size=16,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    vocab_size=10,
    rms_norm_eps=1e-6,
)


def test_savings_are_counted_at_the_mean_length() -> None:
    savings = Savings.of(SPEC, [Tokens(8, 4), Tokens(12, 8)], {1: "proxy"})
    assert savings.tokens == Tokens(10, 6)

    def layer(rows: int, keys: int = 10) -> int:
        projections = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16
        return 2 * rows * projections + 4 * rows * keys * 8

    head = 2 * 8 * 10
    assert savings.p2p.dense == 2 * layer(10) + head
    assert savings.p2p.planned == layer(10) + layer(4) + head
    assert savings.needed.planned < savings.needed.dense < savings.p2p.dense
    per_token = 2 * 4 * 2  # keys and values, one head of four, two bytes
    assert savings.kv_cache_fused.planned == savings.kv_cache_fused.dense == 2 * 10 * per_token
    assert savings.kv_cache_elided.planned == (10 + 4) * per_token
    assert savings.to_dict()["kv_cache_bytes_fp16"]["elided"]["ratio"] == pytest.approx(0.7)
