"""How long work tells where it is: the library stays silent, the command line draws bars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """Anything that can show a loop and a line of text."""

    def track(self, items: Iterable[T], *, description: str, total: int) -> Iterator[T]:
        """Yield `items` unchanged, showing how many of `total` are done."""
        ...

    def say(self, line: str) -> None:
        """Show one line that stays, above any bar."""
        ...


class SilentProgress:
    """Shows nothing."""

    def track(self, items: Iterable[T], *, description: str, total: int) -> Iterator[T]:
        yield from items

    def say(self, line: str) -> None:
        return None


SILENT: Progress = SilentProgress()
