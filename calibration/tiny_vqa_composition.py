"""What a `tiny-vqa` scene is made of, before it is drawn, and the words it is spoken of with."""

from __future__ import annotations

from dataclasses import dataclass

TASKS: tuple[str, ...] = (
    "existence",
    "relation",
    "counting",
    "attribute",
    "reading",
    "choice",
)
GRID = 8
CELL = 16
IMAGE_SIZE = GRID * CELL
COLORS: tuple[str, ...] = ("red", "green", "blue", "yellow", "purple", "orange")
SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "diamond", "cross")
PLURALS: tuple[str, ...] = ("circles", "squares", "triangles", "diamonds", "crosses")
LETTERS: tuple[str, ...] = ("e", "f", "h", "k", "l", "n", "t", "u", "x", "z")
DIRECTIONS: tuple[str, ...] = ("left", "right", "above", "below")
COUNTS: tuple[str, ...] = ("0", "1", "2", "3", "4")
OPTIONS: tuple[str, ...] = ("a", "b", "c", "d")
ORDINALS: tuple[str, ...] = ("first", "second", "third")
SPLITS: tuple[str, ...] = ("train", "held-out")


@dataclass(frozen=True)
class Question:
    """One question about a scene; `choices` is filled for the task `choice` only."""

    task: str
    question: str
    answer: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Thing:
    """An object: indices into `COLORS` and `SHAPES`, and its cell, `row * GRID + column`."""

    color: int
    shape: int
    cell: int


@dataclass(frozen=True)
class Asked:
    """A question with what a teacher may know about it; words are counted as `words` splits them.

    cells: (word, cell) pairs: the object or letter that is meant once this word is read.
    ready: the word from which `value` is determined.
    value: the answer, or for the task `choice` the content of the right option.
    """

    question: Question
    cells: tuple[tuple[int, int], ...]
    ready: int
    value: str


@dataclass(frozen=True)
class Composition:
    """What a scene consists of before it is drawn."""

    things: tuple[Thing, ...]
    sign: tuple[tuple[int, int], ...]  # (index into LETTERS, cell), left to right
    asked: tuple[Asked, ...]
