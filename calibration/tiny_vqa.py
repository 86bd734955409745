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

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from p2p_export.calibration.tiny_vqa_composition import (
    COLORS,
    COUNTS,
    GRID,
    LETTERS,
    SHAPES,
    SPLITS,
    TASKS,
    Composition,
    Question,
    Thing,
)
from p2p_export.calibration.tiny_vqa_drawing import render
from p2p_export.calibration.tiny_vqa_wording import Writer


@dataclass(frozen=True)
class Scene:
    """An image, uint8 [128, 128, 3], and its questions."""

    image: np.ndarray
    questions: tuple[Question, ...]


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
    writer = Writer(rng, things, sign, counted)
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
