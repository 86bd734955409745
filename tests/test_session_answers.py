"""A session answers as transformers' own decoder with its sites overwritten by hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from exported_bundles import MODES, bundle, plan_for, random_model
from hook_oracle import Chunk, hooked_logits

from p2p_export import ProxySet
from p2p_export.engines import Session, State, open_bundle

FAMILIES = ("llava", "qwen2_5_vl")
# fp32 and the same sums in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def session(family: str) -> Session:
    return open_bundle(bundle(family), threads=1)


def chunk(session: Session, rows: Sequence[str], *, seed: int) -> Chunk:
    """One character a row: `.` padding, t text, v visual. Positions are random, in no order."""
    spec = session.manifest.decoder
    generator = np.random.default_rng(seed)
    marks = np.array([list(row) for row in rows])
    axes = (spec.position_axes,) if spec.position_axes > 1 else ()
    return Chunk(
        generator.normal(size=(*marks.shape, spec.hidden_size)).astype(np.float32),
        generator.integers(0, 40, size=(*axes, *marks.shape)),
        marks == "v",
        (marks != ".").astype(np.int64),
    )


def answers(session: Session, chunks: Sequence[Chunk]) -> tuple[list[np.ndarray], State]:
    """Logits of each call; a chunk of one text row is decoded, any other prefilled."""
    state: State | None = None
    logits = []
    for one in chunks:
        if state is not None and one.visual.shape[1] == 1 and not one.visual.any():
            result, state = session.decode(one.inputs_embeds, one.position_ids, state)
        else:
            result, state = session.prefill(
                one.inputs_embeds, one.position_ids, one.visual, one.attention_mask, state
            )
        logits.append(result)
    assert state is not None
    return logits, state


def oracle(family: str, chunks: Sequence[Chunk], modes: dict[int, Any]) -> list[np.ndarray]:
    proxies = ProxySet.for_plan(plan_for(family))
    return hooked_logits(random_model(family), modes, proxies.tensors, chunks)[0]


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


CONTEXTS: dict[str, list[list[str]]] = {
    "text only, then decoding": [["tttttt"], ["t"], ["t"]],
    "image in the middle, then decoding": [["ttvvvvvttt"], ["t"], ["t"]],
    "image first": [["vvvvtt"], ["t"]],
    "image last: a visual row decides": [["ttvvvv"], ["t"]],
    "two images": [["tvvvtvvtt"], ["t"]],
    "one row": [["t"]],
    "rows of a batch that differ": [["ttvvvvvttt", "....vvtttt", "...ttttttt"], ["t", "t", "t"]],
    "a chunk that ends inside the image": [["ttvv"], ["vvvtt"], ["t"]],
    "a later turn with a new image": [["ttvvvtt"], ["t"], ["t"], ["ttvvvvt"], ["t"]],
    "later turns of unequal length": [["tvvtt", "..vtt"], ["t", "t"], ["..tvvt", "tvvvtt"]],
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_pruned_answers_are_those_of_the_hooked_model(
    family: str, session: Session, context: str
) -> None:
    chunks = [chunk(session, rows, seed=i) for i, rows in enumerate(CONTEXTS[context])]
    found, _ = answers(session, chunks)
    expected = oracle(family, chunks, MODES)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == np.float32
        assert relative_error(mine, theirs) <= TOLERANCE


def test_patching_moves_the_answers_so_the_comparison_means_something(
    family: str, session: Session
) -> None:
    chunks = [chunk(session, ["ttvvvvvttt"], seed=0)]
    found, _ = answers(session, chunks)
    assert relative_error(found[0], oracle(family, chunks, {})[0]) > 100 * TOLERANCE


def test_the_dense_decoder_answers_as_the_model_without_hooks(family: str) -> None:
    dense = open_bundle(bundle(family), dense=True, threads=1)
    chunks = [
        chunk(dense, rows, seed=i) for i, rows in enumerate([["ttvvtt", "..vvvt"], ["t"] * 2])
    ]
    found, _ = answers(dense, chunks)
    for mine, theirs in zip(found, oracle(family, chunks, {}), strict=True):
        assert relative_error(mine, theirs) <= TOLERANCE


def test_what_stands_in_padding_rows_does_not_matter(session: Session) -> None:
    one = chunk(session, ["..ttvvt", "tttvvtt"], seed=0)
    loud = one.inputs_embeds.copy()
    loud[0, :2] = 1e4
    again = Chunk(loud, one.position_ids, one.visual, one.attention_mask)
    assert relative_error(answers(session, [again])[0][0], answers(session, [one])[0][0]) <= 1e-6


def test_requests_a_b_a_give_a_the_same_answer(session: Session) -> None:
    a, b = chunk(session, ["ttvvvt"], seed=0), chunk(session, ["tttvvvvvvtt"] * 2, seed=1)
    first, _ = answers(session, [a])
    answers(session, [b])
    again, _ = answers(session, [a])
    np.testing.assert_array_equal(first[0], again[0])


def test_two_conversations_may_be_held_in_turn(session: Session) -> None:
    token = chunk(session, ["t"], seed=9)
    alone = [
        answers(session, [chunk(session, [rows], seed=i), token])[0][-1]
        for i, rows in enumerate(["ttvvt", "tvvvttt"])
    ]
    states = [
        answers(session, [chunk(session, [rows], seed=i)])[1]
        for i, rows in enumerate(["ttvvt", "tvvvttt"])
    ]
    for state, expected in zip(states, alone, strict=True):
        logits, _ = session.decode(token.inputs_embeds, token.position_ids, state)
        np.testing.assert_array_equal(logits, expected)


def test_the_state_counts_the_bytes_of_keys_and_values(session: Session) -> None:
    spec = session.manifest.decoder
    _, state = answers(
        session, [chunk(session, ["ttvvt", "..vvt"], seed=0), chunk(session, ["t"] * 2, seed=1)]
    )
    # Batch rows have up to 3 + 1 text tokens; planned proxy layers keep those alone.
    elided = sum(mode == "proxy" for mode in MODES.values())
    columns = 6 * (spec.num_hidden_layers - elided) + 4 * elided
    assert state.nbytes == 2 * columns * 2 * spec.num_key_value_heads * spec.head_dim * 4
    assert (state.batch, state.length) == (2, 6)
    assert state.context.visual_tokens.tolist() == [2, 2]
    assert state.context.attention_mask.tolist() == [[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]]


def test_other_float_types_are_taken(session: Session) -> None:
    one = chunk(session, ["ttvvt"], seed=0)
    expected, _ = session.prefill(one.inputs_embeds, one.position_ids, one.visual)
    wide, _ = session.prefill(
        one.inputs_embeds.astype(np.float64), one.position_ids.astype(np.int32), one.visual
    )
    np.testing.assert_array_equal(wide, expected)
