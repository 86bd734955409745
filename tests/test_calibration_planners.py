"""The paper's rule, on curves written down by hand and against a search over all runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p_export.calibration.accuracy import Accuracy
from p2p_export.calibration.planners import check_tolerance, largest_union, within_tolerance
from p2p_export.errors import InputError


def curve(*correct: int) -> list[Accuracy]:
    return [Accuracy(count, 100) for count in correct]


DENSE = Accuracy(100, 100)


@pytest.mark.parametrize(
    ("forward", "backward", "layers"),
    [
        ((99, 98, 90, 80), (70, 80, 97, 99), (0, 1, 2, 3)),
        ((99, 90, 90, 80), (70, 80, 90, 99), (0, 3)),
        ((90, 90, 90, 90), (70, 80, 97, 99), (2, 3)),
        ((90, 90, 90, 90), (90, 90, 90, 90), ()),
        ((99, 99, 99, 99), (99, 99, 99, 99), (0, 1, 2, 3)),
        # The largest run counts, though a shorter one fails.
        ((99, 80, 98, 80), (10, 99, 80, 99), (0, 1, 2, 3)),
    ],
)
def test_the_union_of_the_largest_passing_runs(
    forward: tuple[int, ...], backward: tuple[int, ...], layers: tuple[int, ...]
) -> None:
    assert largest_union(curve(*forward), curve(*backward), DENSE, 0.03) == layers


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.tuples(*[st.lists(st.integers(0, 100), min_size=n, max_size=n)] * 2)
    ),
    st.integers(1, 100),
    st.integers(0, 99),
)
def test_equals_a_search_over_all_runs(
    curves: tuple[list[int], list[int]], dense: int, percent: int
) -> None:
    forward, backward = curves
    last = len(forward) - 1
    runs = [range(i + 1) for i in range(last + 1) if forward[i] * 100 >= (100 - percent) * dense]
    ends = [
        range(i, last + 1) for i in range(last + 1) if backward[i] * 100 >= (100 - percent) * dense
    ]
    expected = {*max(runs, key=len, default=())} | {*max(ends, key=len, default=())}
    found = largest_union(
        curve(*forward), curve(*backward), Accuracy(dense, 100), float(f"0.{percent:02}")
    )
    assert set(found) == expected


@pytest.mark.parametrize("percent", range(100))
def test_the_edge_of_the_tolerance_is_inside(percent: int) -> None:
    tolerance = float(f"0.{percent:02}")
    assert within_tolerance(Accuracy(100 - percent, 100), DENSE, tolerance)
    assert not within_tolerance(Accuracy(99 - percent, 100), DENSE, tolerance)


def test_tolerance_is_relative_to_the_dense_accuracy() -> None:
    assert within_tolerance(Accuracy(45, 100), Accuracy(50, 100), 0.1)
    assert not within_tolerance(Accuracy(44, 100), Accuracy(50, 100), 0.1)


@pytest.mark.parametrize("tolerance", [-0.01, 1.0, 3, float("nan"), float("inf")])
def test_a_tolerance_out_of_range_is_refused(tolerance: float) -> None:
    with pytest.raises(InputError, match="is not in"):
        check_tolerance(tolerance)
