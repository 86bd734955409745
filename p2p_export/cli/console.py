"""What the command line prints: results on stdout, progress and warnings on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from p2p_export.cli.progress_bars import make_progress
from p2p_export.cli.streams import unwritable
from p2p_export.errors import InputError
from p2p_export.progress import Progress

# Width of tables that go to a file or a pipe, where there is no terminal to ask.
PIPED_WIDTH = 160


class Console:
    """The two streams of one command. `stdout` is kept here, so that nothing else reaches it
    while `--json` is on (libraries print)."""

    def __init__(self, stdout: TextIO | None = None) -> None:
        self.stdout = stdout or sys.stdout
        self.progress: Progress = make_progress()

    def say(self, line: str) -> None:
        """A line of the result."""
        with self._writing():
            print(line, file=self.stdout)

    def warn(self, sentence: str) -> None:
        """A line on stderr that is not part of the result."""
        self.progress.say(f"warning: {sentence}")

    def document(self, value: Any) -> None:
        """The result as JSON."""
        with self._writing():
            print(json.dumps(value, indent=2, default=str), file=self.stdout)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table of the result; columns behind the first are aligned right when all numbers."""
        try:
            from rich import box
            from rich.console import Console as RichConsole
            from rich.table import Table
            from rich.text import Text
        except ModuleNotFoundError:
            self._plain_table(title, columns, rows)
            return
        width = None if self.stdout.isatty() else PIPED_WIDTH
        table = Table(
            title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, show_header=any(columns)
        )
        for index, column in enumerate(columns):
            numbers = index > 0 and all(_is_number(row[index]) for row in rows)
            table.add_column(Text(column), justify="right" if numbers else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        with self._writing():
            RichConsole(file=self.stdout, width=width, highlight=False).print(table)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Written when the body ends, or said that it cannot be; a reader that has gone is fine."""
        try:
            yield
            self.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise InputError(unwritable(error)) from None

    def _plain_table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> None:
        """The same without rich, for a device that has NumPy and one runtime only."""
        lines = [list(columns), *(list(row) for row in rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        self.say(title)
        for line in lines:
            self.say("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell[0] in "-−+–"
