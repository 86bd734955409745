"""FLOPs under both conventions, against the paper's published figures and a loop over rows."""

from __future__ import annotations

import pytest

from p2p_export.flops import Tokens, kv_cache_bytes, needed_flops, p2p_flops
from p2p_export.models import DecoderSpec

LLAVA_7B = DecoderSpec(32, 4096, 11008, 32, 32, 128, 32064, 1e-5)
QWEN_3B = DecoderSpec(36, 2048, 11008, 16, 2, 128, 151936, 1e-6, 3, (16, 24, 24))
SMALL = DecoderSpec(5, 48, 80, 4, 2, 16, 61, 1e-5)


@pytest.mark.parametrize(
    ("spec", "tokens", "published"),
    [(LLAVA_7B, Tokens(2296, 2253), 32.5e12), (QWEN_3B, Tokens(401, 351), 2.27e12)],
)
def test_dense_rows_are_the_papers(spec: DecoderSpec, tokens: Tokens, published: float) -> None:
    assert p2p_flops(spec, tokens) == pytest.approx(published, rel=2e-3)


@pytest.mark.parametrize(
    ("spec", "linear", "quadratic"),
    [(LLAVA_7B, 12.952e9, 0.5243e6), (QWEN_3B, 5.549e9, 0.2949e6)],
)
def test_dense_is_the_published_polynomial(
    spec: DecoderSpec, linear: float, quadratic: float
) -> None:
    """Second differences give the quadratic term, first ones the linear."""
    at = [p2p_flops(spec, Tokens(n, 0)) for n in (0, 1000, 2000)]
    assert (at[2] - 2 * at[1] + at[0]) / 2e6 == pytest.approx(quadratic, rel=1e-3)
    assert (at[1] - at[0]) / 1000 - quadratic * 1000 == pytest.approx(linear, rel=1e-3)


def counted_by_rows(
    spec: DecoderSpec, rows: str, modes: dict[int, str], *, drop_unread: bool
) -> int:
    """Multiply-accumulates of each row of each layer, added one by one, times two."""
    hidden, inner, heads = spec.hidden_size, spec.intermediate_size, spec.query_size
    total = hidden * spec.vocab_size
    last = spec.num_hidden_layers - 1
    for layer in range(last + 1):
        mode = modes.get(layer, "dense")
        read_later = any(modes.get(i, "dense") != "proxy" for i in range(layer + 1, last + 1))
        for place, stream in enumerate(rows):
            visual = stream == "v"
            keyed = not visual or mode in ("dense", "frozen")
            queried = not visual or mode == "dense"
            if drop_unread:
                queried = queried and (not visual or read_later)
                if layer == last:
                    queried = place == len(rows) - 1
            if keyed:
                total += 2 * hidden * spec.key_value_size
            if queried:
                total += 2 * hidden * heads + 3 * hidden * inner
                total += heads * len(rows)  # scores
                values = rows.count("t") if drop_unread and mode == "proxy" else len(rows)
                total += heads * values
    return 2 * total


@pytest.mark.parametrize(
    "modes",
    [
        {},
        {3: "proxy", 4: "proxy"},
        {0: "proxy"},
        dict.fromkeys(range(5), "proxy"),
        dict.fromkeys(range(5), "frozen"),
        {1: "proxy", 2: "frozen", 4: "proxy"},
    ],
)
def test_both_conventions_equal_a_count_row_by_row(modes: dict[int, str]) -> None:
    rows = "ttvvvvvvttt"
    tokens = Tokens(len(rows), rows.count("v"))
    layers: dict = dict(modes)
    assert p2p_flops(SMALL, tokens, layers) == counted_by_rows(
        SMALL, rows, modes, drop_unread=False
    )
    assert needed_flops(SMALL, tokens, layers) == counted_by_rows(
        SMALL, rows, modes, drop_unread=True
    )


def test_only_an_elided_proxy_layer_holds_less_cache() -> None:
    tokens = Tokens(100, 80)
    dense = kv_cache_bytes(SMALL, tokens, itemsize=4)
    assert dense == 5 * 2 * 2 * 16 * 4 * 100
    elided = kv_cache_bytes(SMALL, tokens, itemsize=4, elided={0: "proxy", 1: "frozen"})
    assert elided == dense - 2 * 2 * 16 * 4 * 80
