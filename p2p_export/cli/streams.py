"""The process's own streams: closed, full, or of a reader that has gone."""

from __future__ import annotations

import io
import os
import sys

STDOUT, STDERR = 1, 2


def streams_usable() -> bool:
    """Make both streams such that printing cannot fail on its own; False when stdout is closed.

    A closed one is pointed at nothing: the next file opened would get its number, and whatever a
    library prints would go into that file.
    """
    open_for_results = sys.stdout is not None
    if sys.stdout is None:
        sys.stdout = _nowhere(STDOUT)
    if sys.stderr is None:
        sys.stderr = _nowhere(STDERR)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may be no UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    return open_for_results


def forget_stdout() -> None:
    """Point stdout at nothing, so that Python's last flush stays silent."""
    _point_at_nothing(STDOUT)


def unwritable(error: OSError) -> str:
    """The sentence for a result that could not be written to stdout."""
    return f"standard output cannot be written: {error.strerror}; send it somewhere else"


def _nowhere(number: int) -> io.TextIOWrapper:
    _point_at_nothing(number)
    return open(number, "w", encoding="utf-8", closefd=False)


def _point_at_nothing(number: int) -> None:
    handle = os.open(os.devnull, os.O_WRONLY)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)
