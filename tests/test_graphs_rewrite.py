"""The rewritten decoder computes what transformers computes with its sites overwritten by hooks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rewritten_decoders import LAYERS, PLANS, Exported, check, chunk, relative_error, run

LOWERINGS = ("literal", "fused", "elided")


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_every_shape_of_plan_equals_the_hooks_in_prefill_and_ten_decode_steps(
    exported: Exported, name: str, lowering: str
) -> None:
    steps = [chunk(exported.spec, ["t"], seed=9 + i) for i in range(10)]
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


MODES = st.lists(
    st.sampled_from(["dense", "proxy", "frozen"]), min_size=LAYERS, max_size=LAYERS
).map(lambda drawn: {i: mode for i, mode in enumerate(drawn) if mode != "dense"})


@st.composite
def calls(draw: Any, layout: str) -> list[list[str]]:
    """A prompt of 1 to 3 rows in 1 to 3 chunks, a token, perhaps a later turn with new images, and
    one more token. Layout `span`: one block at the same place in every row of a chunk."""
    batch = draw(st.integers(1, 3))
    rows = draw(turn(batch, layout))
    for i in range(1, batch):
        # A batch row of layout `span` is shorter in front of the block, where that is text.
        free = len(rows[i]) - 1 if layout == "index" else max(0, rows[i].find("v"))
        padding = draw(st.integers(0, free))
        rows[i] = "." * padding + rows[i][padding:]
    pieces = [rows]
    for _ in range(draw(st.integers(0, 2))):
        last = pieces[-1]
        cut = draw(st.integers(1, len(last[0])))
        head, tail = [row[:cut] for row in last], [row[cut:] for row in last]
        if tail[0] and not any(set(row) == {"."} for row in head) and askable(head, layout):
            pieces[-1:] = [head, tail]
    if not askable(pieces[-1], layout):
        pieces[-1] = [row + "t" for row in pieces[-1]]
    pieces.append(["t"] * batch)
    if draw(st.booleans()):
        pieces += [draw(turn(batch, layout)), ["t"] * batch]
    return pieces


@st.composite
def turn(draw: Any, batch: int, layout: str) -> list[str]:
    """Rows of text and visual tokens, equally long."""
    length = draw(st.integers(1, 9))
    if layout == "index":
        return [draw(st.text("tv", min_size=length, max_size=length)) for _ in range(batch)]
    start = draw(st.integers(0, length))
    end = draw(st.integers(start, length))
    row = "t" * start + "v" * (end - start) + "t" * (length - end)
    return [row if askable([row], layout) else f"t{row}"] * batch


def askable(rows: list[str], layout: str) -> bool:
    """A graph of layout `span` wants a text row in each call."""
    return layout == "index" or "v" * len(rows[0]) not in rows


@pytest.mark.parametrize("layout", ["index", "span"])
@pytest.mark.parametrize("lowering", LOWERINGS)
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_drawn_plans_masks_and_chunkings_equal_the_hooks(
    exported: Exported, lowering: str, layout: str, data: Any
) -> None:
    modes = data.draw(MODES, label="modes")
    pieces = data.draw(calls(layout), label="calls")
    chunks = [chunk(exported.spec, rows, seed=i) for i, rows in enumerate(pieces)]
    check(exported, modes, chunks, lowering, layout)


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
