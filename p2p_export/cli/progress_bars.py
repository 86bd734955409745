"""Progress on stderr: bars on a terminal, lines now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from p2p_export.progress import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

T = TypeVar("T")

SECONDS_BETWEEN_LINES = 15.0


def make_progress() -> Progress:
    """Bars where stderr is a terminal and rich is there, lines otherwise."""
    if not sys.stderr.isatty():
        return LineProgress()
    try:
        import rich.progress  # noqa: F401
    except ModuleNotFoundError:
        return LineProgress()
    return BarProgress()


class LineProgress:
    """A line when a loop begins and one every quarter of a minute."""

    def track(self, items: Iterable[T], *, description: str, total: int) -> Iterator[T]:
        self.say(f"{description} ({total})")
        last = time.monotonic()
        for done, item in enumerate(items, start=1):
            yield item
            now = time.monotonic()
            if now - last >= SECONDS_BETWEEN_LINES and done < total:
                self.say(f"{description}: {done} of {total}")
                last = now

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class BarProgress:
    """One bar per loop in progress; bars vanish when their loop ends, lines stay."""

    def __init__(self) -> None:
        self._bars: Bars | None = None
        self._running = 0

    def track(self, items: Iterable[T], *, description: str, total: int) -> Iterator[T]:
        bars = self._started()
        task = bars.add_task(description, total=total)
        try:
            for item in items:
                yield item
                bars.advance(task)
        finally:
            bars.remove_task(task)
            self._running -= 1
            if self._running == 0:
                bars.stop()

    def say(self, line: str) -> None:
        from rich.text import Text

        self._made().console.print(Text(line), soft_wrap=True)

    def _started(self) -> Bars:
        bars = self._made()
        if self._running == 0:
            bars.start()
        self._running += 1
        return bars

    def _made(self) -> Bars:
        if self._bars is None:
            from rich import progress
            from rich.console import Console

            self._bars = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
        return self._bars
