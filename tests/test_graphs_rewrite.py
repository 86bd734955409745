"""The rewritten decoder computes what transformers computes with its sites overwritten by hooks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rewritten_decoders import LAYERS, PLANS, Exported, check, chunk, relative_error, run


@pytest.mark.parametrize("name", PLANS)
def test_every_shape_of_plan_equals_the_hooks_in_prefill_and_decode(
    exported: Exported, name: str, lowering: str
) -> None:
    steps = [chunk(exported.spec, ["t"], seed=9 + i) for i in range(3)]
    check(exported, PLANS[name], [chunk(exported.spec, ["ttvvvvvttt"]), *steps], lowering)


@pytest.mark.parametrize("name", [name for name in PLANS if name != "none"])
def test_patching_moves_the_logits(exported: Exported, name: str, lowering: str) -> None:
    prompt = [chunk(exported.spec, ["ttvvvvvttt"])]
    pruned, _ = run(exported.session(PLANS[name], lowering), exported.spec, prompt)
    dense, _ = run(exported.session({}, lowering), exported.spec, prompt)
    moved = relative_error(pruned, dense)
    # Visual rows of the last layer alone are read by nobody but its keys and values.
    assert moved > 1e-3 or PLANS[name] == {4: "frozen"}


@pytest.mark.parametrize(
    "rows",
    [
        ["vvvvtttt"],
        ["ttttvvvv"],
        ["tttttttt"],
        ["vvvvvvvv"],
        ["v"],
        ["tvvvtvvt"],
        ["tvtvtvtv"],
        ["ttvvvttt", "...tvvvt"],
        ["vvvvvvtt", "..tttttt"],
        ["tvvvvvvv", "....tttv", "ttttttvt"],
    ],
    ids=lambda rows: "/".join(rows),
)
@pytest.mark.parametrize("name", ["suffix", "frozen amid proxy", "prefix", "isolated", "all"])
def test_every_place_of_the_image_equals_the_hooks(
    exported: Exported, rows: list[str], name: str, lowering: str
) -> None:
    step = chunk(exported.spec, ["t"] * len(rows), seed=5)
    check(exported, PLANS[name], [chunk(exported.spec, rows), step], lowering)


@pytest.mark.parametrize("name", PLANS)
def test_chunks_that_end_inside_the_image_and_later_turns_equal_the_hooks(
    exported: Exported, name: str, lowering: str
) -> None:
    spec = exported.spec
    chunks = [
        chunk(spec, ["ttvv", ".tvv"], seed=1),
        chunk(spec, ["vvvt", "vvvv"], seed=2),
        chunk(spec, ["t", "t"], seed=3),
        chunk(spec, ["t", "t"], seed=4),
        chunk(spec, ["tvvt", "vvtt"], seed=5),
        chunk(spec, ["t", "t"], seed=6),
    ]
    check(exported, PLANS[name], chunks, lowering)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_drawn_plans_masks_and_chunkings_equal_the_hooks(
    exported: Exported, lowering: str, data: Any
) -> None:
    modes = data.draw(
        st.lists(
            st.sampled_from(["dense", "proxy", "frozen"]), min_size=LAYERS, max_size=LAYERS
        ).map(lambda drawn: {i: mode for i, mode in enumerate(drawn) if mode != "dense"}),
        label="modes",
    )
    batch = data.draw(st.integers(1, 3), label="batch")
    length = data.draw(st.integers(1, 9), label="length")
    rows = [
        data.draw(st.text("tv", min_size=length, max_size=length), label=f"row {i}")
        for i in range(batch)
    ]
    padding = [data.draw(st.integers(0, length - 1)) if i else 0 for i in range(batch)]
    rows = ["." * pad + row[pad:] for pad, row in zip(padding, rows, strict=True)]
    cut = data.draw(st.integers(1, length), label="cut")
    if any(set(row[:cut]) == {"."} for row in rows):
        cut = length
    pieces = [rows] if cut == length else [[r[:cut] for r in rows], [r[cut:] for r in rows]]
    chunks = [chunk(exported.spec, piece, seed=i) for i, piece in enumerate(pieces)]
    check(exported, modes, [*chunks, chunk(exported.spec, ["t"] * batch, seed=8)], lowering)


@pytest.mark.parametrize("name", PLANS)
def test_the_literal_reading_equals_the_hooks(exported: Exported, name: str) -> None:
    spec = exported.spec
    chunks = [
        chunk(spec, ["ttvv", ".tvv"], seed=1),
        chunk(spec, ["vvvt", "vvvv"], seed=2),
        chunk(spec, ["t", "t"], seed=3),
        chunk(spec, ["tvvt", "vvtt"], seed=4),
    ]
    check(exported, PLANS[name], chunks, "literal")


@pytest.mark.parametrize("lowering", ["literal", "fused", "elided"])
@pytest.mark.parametrize("name", PLANS)
def test_layout_span_equals_the_hooks(exported: Exported, name: str, lowering: str) -> None:
    """One block at the same place of every row: in the middle, first, last, absent, padded."""
    spec = exported.spec
    chunks = [
        chunk(spec, ["..tvvvt", "tttvvvt"], seed=1),
        chunk(spec, ["t", "t"], seed=2),
        chunk(spec, ["vvtt", "vvtt"], seed=3),
        chunk(spec, ["tvvv", "tvvv"], seed=4),
        chunk(spec, ["t", "t"], seed=5),
    ]
    check(exported, PLANS[name], chunks, lowering, "span")
