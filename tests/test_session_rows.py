"""The rows of each stream that the host hands to the graph."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p_export.engines.row_index import row_indices


def looped(marks: list[str], wanted: str) -> list[list[int]]:
    """Row by row, with loops: places of a mark, -1 behind, at least one column."""
    places = [[at for at, mark in enumerate(row) if mark == wanted] for row in marks]
    width = max(1, *(len(row) for row in places))
    return [row + [-1] * (width - len(row)) for row in places]


def indices(marks: list[str]) -> tuple[np.ndarray, np.ndarray]:
    array = np.array([list(row) for row in marks])
    return row_indices(array == "v", (array != ".").astype(np.int64))


def rows_of(length: int) -> st.SearchStrategy[list[str]]:
    row = st.lists(st.sampled_from("tv."), min_size=length, max_size=length).map("".join)
    return st.lists(row, min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9).flatmap(rows_of))
def test_indices_are_those_a_loop_finds(marks: list[str]) -> None:
    text, visual = indices(marks)
    assert text.tolist() == looped(marks, "t")
    assert visual.tolist() == looped(marks, "v")
    assert text.dtype == visual.dtype == np.int64


def test_a_stream_without_rows_is_a_column_of_padding() -> None:
    text, visual = indices(["vv", ".v"])
    assert text.tolist() == [[-1], [-1]]
    assert visual.tolist() == [[0, 1], [1, -1]]
