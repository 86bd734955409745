"""The questions about a `tiny-vqa` composition, and the words they are made of."""

from __future__ import annotations

import re

import numpy as np

from p2p_export.calibration.tiny_vqa_composition import (
    COLORS,
    COUNTS,
    DIRECTIONS,
    GRID,
    LETTERS,
    OPTIONS,
    ORDINALS,
    PLURALS,
    SHAPES,
    Asked,
    Question,
    Thing,
)

_WORD = re.compile(r"\w+|[^\w\s]")
_QUESTION_WORDS = (
    "is there a the ? where relative to how many shapes are what color which shape next"
    " letter on sign ) yes no"
)
VOCABULARY: tuple[str, ...] = tuple(
    sorted(
        {*_QUESTION_WORDS.split(), *COLORS, *SHAPES, *PLURALS, *LETTERS}
        | {*DIRECTIONS, *COUNTS, *OPTIONS, *ORDINALS}
    )
)


def words(text: str) -> list[str]:
    """Split a question as the built-in models' tokenizers do: lower-case words and marks."""
    return _WORD.findall(text.lower())


class Writer:
    """Asks about one composition; holds the generator that decides what is asked."""

    def __init__(
        self,
        rng: np.random.Generator,
        things: tuple[Thing, ...],
        sign: tuple[tuple[int, int], ...],
        counted: tuple[str, int, int],
    ) -> None:
        self.rng = rng
        self.things = things
        self.sign = sign
        self.counted = counted

    def ask(self, task: str, *, first: bool) -> Asked:
        if task == "counting":
            return self.counting(self.counted if first else self.another_count())
        asked: Asked = getattr(self, task)()
        return asked

    def pick(self, options: int) -> int:
        return int(self.rng.integers(options))

    def existence(self) -> Asked:
        there = {(thing.color, thing.shape): thing.cell for thing in self.things}
        if self.rng.random() < 0.5:
            color, shape = list(there)[self.pick(len(there))]
        else:
            colors = sorted({thing.color for thing in self.things})
            shapes = sorted({thing.shape for thing in self.things})
            absent = [(c, s) for c in colors for s in shapes if (c, s) not in there]
            if not absent:  # every pair of what occurs is there: name a colour that does not occur
                others = [c for c in range(len(COLORS)) if c not in colors]
                absent = [(c, s) for c in others for s in shapes]
            color, shape = absent[self.pick(len(absent))]
        text = f"is there a {COLORS[color]} {SHAPES[shape]}?"
        cell = there.get((color, shape))
        answer = "no" if cell is None else "yes"
        marks = () if cell is None else ((4, cell),)
        return Asked(Question("existence", text, answer), marks, 4, answer)

    def relation(self) -> Asked:
        wanted = self.pick(len(DIRECTIONS))
        pairs: list[list[tuple[Thing, Thing]]] = [[] for _ in DIRECTIONS]
        for one in self.things:
            for other in self.things:
                direction = _direction(one.cell, other.cell)
                if direction is not None:
                    pairs[direction].append((one, other))
        if not pairs[wanted]:  # the two neighbours of every scene lie along the other axis
            wanted ^= 2
        one, other = pairs[wanted][self.pick(len(pairs[wanted]))]
        text = f"where is the {_name(one)} relative to the {_name(other)}?"
        answer = DIRECTIONS[wanted]
        marks = ((4, one.cell), (9, other.cell))
        return Asked(Question("relation", text, answer), marks, 9, answer)

    def another_count(self) -> tuple[str, int, int]:
        colors = [thing.color for thing in self.things]
        shapes = [thing.shape for thing in self.things]
        found = [("color", c, colors.count(c)) for c in range(len(COLORS))]
        found += [("shape", s, shapes.count(s)) for s in range(len(SHAPES))]
        counts = sorted({count for _, _, count in found if count < len(COUNTS)})
        count = counts[self.pick(len(counts))]
        fitting = [item for item in found if item[2] == count]
        return fitting[self.pick(len(fitting))]

    def counting(self, counted: tuple[str, int, int]) -> Asked:
        kind, which, count = counted
        if kind == "color":
            text, ready = f"how many {COLORS[which]} shapes are there?", 3
        else:
            text, ready = f"how many {PLURALS[which]} are there?", 2
        answer = COUNTS[count]
        return Asked(Question("counting", text, answer), (), ready, answer)

    def attribute(self) -> Asked:
        if self.rng.random() < 0.5:
            first = self.rng.random() < 0.5
            text, cell, ready, value = self.beside(first, by_color=self.rng.random() < 0.5)
        else:
            text, cell, ready, value, _ = self.direct()
        return Asked(Question("attribute", text, value), ((ready, cell),), ready, value)

    def beside(self, first: bool, by_color: bool) -> tuple[str, int, int, str]:
        """Ask about the neighbour of the first or second thing, which stand side by side."""
        here, there = self.things[:2] if first else self.things[1::-1]
        if by_color:
            text, value = f"what color is the shape next to the {_name(here)}?", COLORS[there.color]
        else:
            text, value = f"which shape is next to the {_name(here)}?", SHAPES[there.shape]
        return text, here.cell, len(words(text)) - 2, value

    def direct(self) -> tuple[str, int, int, str, tuple[str, ...]]:
        """Ask for the colour of the only thing of its shape, or the shape of a colour's only one.

        Returns the text, the cell and the word that name it, the answer, and all possible answers;
        where nothing is alone, asks about a neighbour and offers no other answers.
        """
        colors = [thing.color for thing in self.things]
        shapes = [thing.shape for thing in self.things]
        alone = [(thing, True) for thing in self.things if shapes.count(thing.shape) == 1]
        alone += [(thing, False) for thing in self.things if colors.count(thing.color) == 1]
        if not alone:
            picked = self.pick(len(self.things))
            return *self.beside(first=picked % 2 == 0, by_color=picked % 4 < 2), ()
        thing, by_shape = alone[self.pick(len(alone))]
        if by_shape:
            text = f"what color is the {SHAPES[thing.shape]}?"
            return text, thing.cell, 4, COLORS[thing.color], COLORS
        text = f"which shape is {COLORS[thing.color]}?"
        return text, thing.cell, 3, SHAPES[thing.shape], SHAPES

    def letter(self) -> tuple[str, int, int, str, tuple[str, ...]]:
        place = self.pick(len(self.sign))
        letter, cell = self.sign[place]
        if len(self.sign) == 1 and self.rng.random() < 0.5:
            return "what letter is on the sign?", cell, 5, LETTERS[letter], LETTERS
        ordinal = ORDINALS[place]
        text = f"what is the {ordinal} letter on the sign?"
        return text, cell, 7, LETTERS[letter], LETTERS

    def reading(self) -> Asked:
        text, cell, ready, value, _ = self.letter()
        return Asked(Question("reading", text, value), ((ready, cell),), ready, value)

    def choice(self) -> Asked:
        source = self.letter if self.rng.random() < 0.3 else self.direct
        text, cell, ready, value, values = source()
        if len(values) < len(OPTIONS):
            text, cell, ready, value, values = self.letter()
        place = self.pick(len(OPTIONS))
        others = [other for other in values if other != value]
        choices = [others[k] for k in self.rng.permutation(len(others))[: len(OPTIONS) - 1]]
        choices.insert(place, value)
        listed = " ".join(f"{o}) {c}" for o, c in zip(OPTIONS, choices, strict=True))
        question = Question("choice", f"{text} {listed}", OPTIONS[place], tuple(choices))
        return Asked(question, ((ready, cell),), ready, value)


def _name(thing: Thing) -> str:
    return f"{COLORS[thing.color]} {SHAPES[thing.shape]}"


def _direction(one: int, other: int) -> int | None:
    """Index into DIRECTIONS of cell `one` seen from `other`; None when it is nearly diagonal."""
    down, right = (a - b for a, b in zip(divmod(one, GRID), divmod(other, GRID), strict=True))
    if abs(right) > abs(down) + 1 or (down == 0 and right != 0):
        return 0 if right < 0 else 1
    if abs(down) > abs(right) + 1 or (right == 0 and down != 0):
        return 2 if down < 0 else 3
    return None
