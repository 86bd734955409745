"""The argument parser of a verb, and the argument types that verbs share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from p2p_export.errors import InputError
from p2p_export.json_reading import shortened


class Parser(argparse.ArgumentParser):
    """An argparse parser whose usage errors are `InputError`s of one sentence."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see `{self.prog} --help`")


def make_parser(prog: str, description: str, example: str) -> Parser:
    """A parser with the options every verb has; `example` is shown at the end of its help."""
    parser = Parser(
        prog=prog,
        description=description,
        epilog=f"example:\n{_indented(example)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--debug", action="store_true", help="show the Python traceback of an error"
    )
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`: the result as one JSON document on stdout, progress on stderr."""
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON, and nothing else on stdout"
    )


def one_of(*works: str, later: tuple[str, ...] = ()) -> Callable[[str], str]:
    """An argument type: one of `works`; a word of `later` is said not to work yet."""

    def convert(text: str) -> str:
        if text in works:
            return text
        offered = " or ".join(works)
        if text in later:
            raise argparse.ArgumentTypeError(
                f"{text} does not work yet in this version, use {offered}"
            )
        raise argparse.ArgumentTypeError(f"{text!r} is not offered, use {offered}")

    return convert


def positive_int(text: str) -> int:
    """An argument type: 1, 2, 3, ..."""
    value = _number(text, int, "a whole number")
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return int(value)


def size(text: str) -> int:
    """An argument type: 0, 1, 2, ..."""
    value = _number(text, int, "a whole number")
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return int(value)


def tolerance(text: str) -> float:
    """An argument type: a relative accuracy drop, 0 <= value < 1."""
    value = _number(text, float, "a number")
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(
            f"{text} is out of range: a tolerance is a fraction from 0 to below 1 (0.03 is 3 %)"
        )
    return value


def _number(text: str, kind: Callable[[str], float], name: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shortened(text)!r} is not {name}") from None


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines())
