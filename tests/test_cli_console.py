"""What reaches the two streams, with rich and without."""

from __future__ import annotations

import io
import sys

import pytest

from p2p_export.cli.console import Console
from p2p_export.cli.progress_bars import BarProgress, LineProgress, make_progress

ROWS = [["prefill", "12.50 ms"], ["a [bold]name[/bold]", "8.00 ms"]]


@pytest.mark.parametrize("with_rich", [True, False])
def test_a_table_holds_every_cell_as_it_is(
    with_rich: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_rich:
        for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "rich", None)
    stream = io.StringIO()
    Console(stream).table("Times", ["", "dense"], ROWS)
    shown = stream.getvalue()
    assert all(cell in shown for row in ROWS for cell in row)
    assert "Times" in shown
    assert "dense" in shown


def test_a_table_in_a_pipe_is_not_cut_to_eighty_columns() -> None:
    stream = io.StringIO()
    Console(stream).table("", ["a", "b"], [["x" * 60, "y" * 60]])
    assert "x" * 60 in stream.getvalue()
    assert "y" * 60 in stream.getvalue()


def test_progress_in_a_log_is_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    progress = make_progress()
    assert isinstance(progress, LineProgress)
    assert list(progress.track([1, 2], description="sweep", total=2)) == [1, 2]
    progress.say("dense 0.99")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == ["sweep (2)", "dense 0.99"]


def test_bars_pass_items_on_and_end_with_their_loop(capsys: pytest.CaptureFixture[str]) -> None:
    progress = BarProgress()
    outer = progress.track("ab", description="outer", total=2)
    seen = [(a, b) for a in outer for b in progress.track("cd", description="inner", total=2)]
    assert seen == [("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")]
    progress.say("[not markup]")
    assert "[not markup]" in capsys.readouterr().err


def test_a_loop_that_is_left_early_leaves_no_bar_behind() -> None:
    progress = BarProgress()
    left = progress.track([1, 2], description="left", total=2)
    assert next(left) == 1
    del left
    assert list(progress.track([3], description="again", total=1)) == [3]
