"""FLOPs of a decoder prefill, dense or planned, under two named conventions.

`p2p` is the paper's: 2 x multiply-accumulates, full (non-causal) attention, every row of every
layer of a dense model, no vision tower, no generation, lm_head on one position.

`needed` counts what must be computed under the rule "rows nobody reads later" (DESIGN §2): behind
the last layer that reads them, visual rows are gone; that layer computes of a visual row only its
k and v; the last layer computes only the row whose logits are asked; a proxy layer multiplies no
probabilities with visual values. Measured time over dense time is held against needed over needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p2p_export.models.decoder_spec import DecoderSpec
    from p2p_export.plan import Mode

CONVENTIONS = ("p2p", "needed")


@dataclass(frozen=True)
class Tokens:
    """Lengths of one prompt, averaged or of one sample: all rows and the visual ones among them."""

    total: float
    visual: float

    @property
    def text(self) -> float:
        return self.total - self.visual


def p2p_flops(spec: DecoderSpec, tokens: Tokens, layers: Mapping[int, Mode] | None = None) -> float:
    """FLOPs of one prefill under convention `p2p`; `layers` as in a plan, none for dense."""
    modes = layers or {}
    total = 2.0 * spec.hidden_size * spec.vocab_size
    for layer in range(spec.num_hidden_layers):
        mode = modes.get(layer, "dense")
        rows = tokens.total if mode == "dense" else tokens.text
        key_value_rows = tokens.total if mode == "frozen" else rows
        total += _layer_flops(spec, rows, key_value_rows, score_keys=tokens.total)
    return total


def needed_flops(
    spec: DecoderSpec, tokens: Tokens, layers: Mapping[int, Mode] | None = None
) -> float:
    """FLOPs of one prefill under convention `needed` (text last, logits of the last position)."""
    modes = layers or {}
    last = spec.num_hidden_layers - 1
    readers = [i for i in range(last + 1) if modes.get(i, "dense") != "proxy"]
    last_reader = max(readers, default=-1)
    total = 2.0 * spec.hidden_size * spec.vocab_size
    for layer in range(last + 1):
        mode = modes.get(layer, "dense")
        rows = tokens.total if mode == "dense" and layer < last_reader else tokens.text
        key_value_rows = tokens.text if mode == "proxy" else tokens.total
        if layer == last:
            rows = 1.0
        value_keys = tokens.text if mode == "proxy" else tokens.total
        total += _layer_flops(
            spec, rows, key_value_rows, score_keys=tokens.total, value_keys=value_keys
        )
    return total


def kv_cache_bytes(
    spec: DecoderSpec,
    tokens: Tokens,
    *,
    itemsize: int,
    batch: int = 1,
    elided: Mapping[int, Mode] | None = None,
) -> float:
    """Bytes of KV cache held: all tokens, but text tokens only in an elided `proxy` layer."""
    total = 0.0
    for layer in range(spec.num_hidden_layers):
        held = tokens.text if (elided or {}).get(layer) == "proxy" else tokens.total
        total += 2.0 * batch * spec.key_value_size * itemsize * held
    return total


def _layer_flops(
    spec: DecoderSpec,
    rows: float,
    key_value_rows: float,
    *,
    score_keys: float,
    value_keys: float | None = None,
) -> float:
    query_and_output = 2 * spec.hidden_size * spec.query_size
    mlp = 3 * spec.hidden_size * spec.intermediate_size
    key_and_value = 2 * spec.hidden_size * spec.key_value_size
    keys = score_keys + (score_keys if value_keys is None else value_keys)
    attention = rows * keys * spec.query_size
    return 2.0 * (rows * (query_and_output + mlp) + key_value_rows * key_and_value + attention)
