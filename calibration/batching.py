"""How many prompts go through the model at once."""

from __future__ import annotations

from p2p_export.flops import Tokens
from p2p_export.models import DecoderSpec

LARGEST_BATCH = 32
# The sweep holds what every layer read; attention scores of one layer come on top.
BYTES_HELD = 2**30
FLOAT32 = 4


def batch_size_for(spec: DecoderSpec, prompt: Tokens) -> int:
    """As many prompts of this length as keep a batch's states within a gibibyte, 1 to 32."""
    states = spec.num_hidden_layers * prompt.total * spec.hidden_size
    scores = spec.num_attention_heads * prompt.total**2
    fitting = BYTES_HELD // int(FLOAT32 * (states + scores))
    return max(1, min(LARGEST_BATCH, fitting))
