"""Batches are as large as memory allows."""

from __future__ import annotations

from dataclasses import replace

from calibration_models import random_loaded

from p2p_export.calibration.batching import BYTES_HELD, LARGEST_BATCH, batch_size_for
from p2p_export.flops import Tokens


def test_a_small_model_takes_the_largest_batch_and_a_large_one_few_prompts() -> None:
    small = random_loaded("tiny-llava").spec
    assert batch_size_for(small, Tokens(80, 64)) == LARGEST_BATCH
    seven_billion = replace(
        small, num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, head_dim=128
    )
    assert batch_size_for(seven_billion, Tokens(2296, 2253)) == 1
    between = batch_size_for(seven_billion, Tokens(300, 250))
    assert 1 < between < LARGEST_BATCH
    assert between * 4 * 32 * 300 * 4096 <= BYTES_HELD
