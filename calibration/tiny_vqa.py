"""`tiny-vqa`: synthetic scenes and questions that need the image, six tasks with one-word answers.

A scene is a 128x128 picture on an 8x8 grid of 16-pixel cells: 4 to 9 objects, no two of the same
colour and shape, and a sign of one to three letters. Each task mirrors a public benchmark:

=========== ===================== ==========================================================
existence   POPE                  is there a red circle? The "no" half names a colour and a
                                  shape that both occur, but not together
relation    WhatsUp               where is the red circle relative to the blue square?
counting    CV-Bench              how many red shapes are there? 0 to 4
attribute   GQA                   colour or shape of an object; half of them in two hops
reading     TextVQA               the n-th letter on the sign
choice      ScienceQA, AI2D       four options in the question, the answer is a letter a-d
=========== ===================== ==========================================================

Everything follows from `(split, index)`; the splits never share a seed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

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

_RGB = np.array(
    [(205, 45, 45), (45, 160, 60), (50, 80, 205), (235, 205, 40), (140, 60, 170), (240, 135, 30)],
    dtype=np.int16,
)
_SIGN_RGB = np.array((40, 45, 55), dtype=np.int16)
_GLYPHS = (  # 5 columns x 7 rows, one string of rows per letter of LETTERS
    "##### #.... #.... ####. #.... #.... #####",
    "##### #.... #.... ####. #.... #.... #....",
    "#...# #...# #...# ##### #...# #...# #...#",
    "#...# #..#. #.#.. ##... #.#.. #..#. #...#",
    "#.... #.... #.... #.... #.... #.... #####",
    "#...# ##..# ##..# #.#.# #..## #..## #...#",
    "##### ..#.. ..#.. ..#.. ..#.. ..#.. ..#..",
    "#...# #...# #...# #...# #...# #...# .###.",
    "#...# #...# .#.#. ..#.. .#.#. #...# #...#",
    "##### ....# ...#. ..#.. .#... #.... #####",
)
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Question:
    """One question about a scene; `choices` is filled for the task `choice` only."""

    task: str
    question: str
    answer: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scene:
    """An image, uint8 [128, 128, 3], and its questions."""

    image: np.ndarray
    questions: tuple[Question, ...]


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


def words(text: str) -> list[str]:
    """Split a question as the built-in models' tokenizers do: lower-case words and marks."""
    return _WORD.findall(text.lower())


def scene(index: int, *, split: str = "held-out", questions_per_task: int = 1) -> Scene:
    """Draw scene `index` of a split, with `questions_per_task` questions of each task.

    Raises ValueError for an unknown split or a negative index.
    """
    questions = dict.fromkeys(TASKS, questions_per_task)
    composition, rng = compose(index, split=split, questions=questions)
    return Scene(render(composition, rng), tuple(asked.question for asked in composition.asked))


def compose(
    index: int,
    *,
    split: str,
    questions: Mapping[str, int],
    objects: tuple[int, int] = (4, 9),
) -> tuple[Composition, np.random.Generator]:
    """Place the objects of a scene and ask about them; also returns the generator to draw with."""
    if split not in SPLITS:
        raise ValueError(f"unknown tiny-vqa split {split!r}; there are {', '.join(SPLITS)}")
    if index < 0:
        raise ValueError(f"a tiny-vqa scene index is 0 or more, not {index}")
    rng = np.random.default_rng(np.random.SeedSequence((SPLITS.index(split), index)))
    counted = _draw_counted(rng, objects)
    things, sign = _place(rng, counted, objects)
    writer = _Writer(rng, things, sign, counted)
    asked = tuple(
        writer.ask(task, first=number == 0)
        for task, count in questions.items()
        for number in range(count)
    )
    return Composition(things, sign, asked), rng


def _draw_counted(rng: np.random.Generator, objects: tuple[int, int]) -> tuple[str, int, int]:
    """The property that the first counting question asks for: (kind, index, how many)."""
    kind = "color" if rng.random() < 0.5 else "shape"
    which = int(rng.integers(len(COLORS) if kind == "color" else len(SHAPES)))
    return kind, which, int(rng.integers(min(len(COUNTS), objects[1] + 1)))


def _place(
    rng: np.random.Generator, counted: tuple[str, int, int], objects: tuple[int, int]
) -> tuple[tuple[Thing, ...], tuple[tuple[int, int], ...]]:
    kind, which, count = counted
    total = int(rng.integers(max(objects[0], count), objects[1] + 1))
    pairs = [divmod(k, len(SHAPES)) for k in rng.permutation(len(COLORS) * len(SHAPES)).tolist()]
    with_it = [pair for pair in pairs if pair[kind == "shape"] == which]
    without = [pair for pair in pairs if pair[kind == "shape"] != which]
    kinds = with_it[:count] + without[: total - count]
    kinds = [kinds[place] for place in rng.permutation(total)]

    length = int(rng.integers(1, 4))
    start = int(rng.integers(GRID)) * GRID + int(rng.integers(GRID - length + 1))
    letters = rng.integers(len(LETTERS), size=length).tolist()
    sign = tuple((letter, start + place) for place, letter in enumerate(letters))

    taken = {cell for _, cell in sign}
    cells: list[int] = []
    free = [cell for cell in rng.permutation(GRID * GRID).tolist() if cell not in taken]
    for cell in free:  # one pair of neighbours for the two-hop questions
        beside = [other for other in _beside(cell) if other not in taken]
        if beside:
            cells = [cell, beside[int(rng.integers(len(beside)))]]
            break
    around = {near for cell in cells for near in _around(cell)}
    apart = [cell for cell in free if cell not in around]
    cells += apart[: total - len(cells)]
    return tuple(Thing(c, s, cell) for (c, s), cell in zip(kinds, cells, strict=True)), sign


def _beside(cell: int) -> list[int]:
    """The cells left, right, above and below."""
    row, column = divmod(cell, GRID)
    near = ((row, column - 1), (row, column + 1), (row - 1, column), (row + 1, column))
    return [r * GRID + c for r, c in near if 0 <= r < GRID and 0 <= c < GRID]


def _around(cell: int) -> list[int]:
    """The cell and its up to eight neighbours."""
    row, column = divmod(cell, GRID)
    rows = range(max(row - 1, 0), min(row + 2, GRID))
    columns = range(max(column - 1, 0), min(column + 2, GRID))
    return [r * GRID + c for r in rows for c in columns]


class _Writer:
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


def render(composition: Composition, rng: np.random.Generator) -> np.ndarray:
    """Draw a composition, uint8 [128, 128, 3]: jittered positions, sizes and colours, and noise."""
    canvas = np.empty((IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.int16)
    canvas[:] = rng.integers(205, 246, size=3)
    for letter, cell in composition.sign:
        tile = _tile(canvas, cell)
        tile[:] = _SIGN_RGB
        down, right = rng.integers(0, 2, size=2)
        tile[1 + down : 15 + down, 3 + right : 13 + right][_LETTER_MASKS[letter]] = 235
    for thing in composition.things:
        masks = _SHAPE_MASKS[thing.shape]
        mask = masks[rng.integers(len(masks))]
        color = _RGB[thing.color] + rng.integers(-15, 16, size=3)
        _tile(canvas, thing.cell)[mask] = color
    canvas += rng.integers(-10, 11, size=canvas.shape, dtype=np.int16)
    return canvas.clip(0, 255).astype(np.uint8)


def _tile(canvas: np.ndarray, cell: int) -> np.ndarray:
    row, column = divmod(cell, GRID)
    return canvas[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]


def _letter_masks() -> np.ndarray:
    """bool [10, 14, 10]: the glyphs, each dot two pixels wide and high."""
    dots = [[[dot == "#" for dot in row] for row in glyph.split()] for glyph in _GLYPHS]
    return np.array(dots).repeat(2, axis=1).repeat(2, axis=2)


def _shape_masks() -> list[np.ndarray]:
    """For each shape bool [18, 16, 16]: two sizes, shifted by up to a pixel either way."""
    masks = []
    for shape in SHAPES:
        drawn = []
        for size in (10, 12):
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    picture = Image.new("1", (CELL, CELL))
                    _draw(ImageDraw.Draw(picture), shape, 8 + right, 8 + down, size // 2)
                    drawn.append(np.asarray(picture))
        masks.append(np.stack(drawn))
    return masks


def _draw(draw: ImageDraw.ImageDraw, shape: str, x: int, y: int, half: int) -> None:
    left, top, right, bottom = x - half, y - half, x + half - 1, y + half - 1
    if shape == "circle":
        draw.ellipse((left, top, right, bottom), fill=1)
    elif shape == "square":
        draw.rectangle((left, top, right, bottom), fill=1)
    elif shape == "triangle":
        draw.polygon(((x - 1, top), (x, top), (right, bottom), (left, bottom)), fill=1)
    elif shape == "diamond":
        draw.polygon(((x, top), (right, y), (x, bottom), (left, y)), fill=1)
    else:
        draw.rectangle((left, y - 2, right, y + 1), fill=1)
        draw.rectangle((x - 2, top, x + 1, bottom), fill=1)


_LETTER_MASKS = _letter_masks()
_SHAPE_MASKS = _shape_masks()

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
