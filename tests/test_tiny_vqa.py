"""The tiny-vqa scenes: repeatable, apart by split, balanced, and answered by what is drawn."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from p2p_export.calibration.tiny_vqa import compose, scene
from p2p_export.calibration.tiny_vqa_composition import TASKS, Composition
from p2p_export.calibration.tiny_vqa_wording import VOCABULARY, words

COLORS = {
    "red": (205, 45, 45),
    "green": (45, 160, 60),
    "blue": (50, 80, 205),
    "yellow": (235, 205, 40),
    "purple": (140, 60, 170),
    "orange": (240, 135, 30),
}
SINGULAR = {
    "circles": "circle",
    "squares": "square",
    "triangles": "triangle",
    "diamonds": "diamond",
    "crosses": "cross",
}


def composed(index: int, per_task: int = 1) -> Composition:
    return compose(index, split="held-out", questions=dict.fromkeys(TASKS, per_task))[0]


def test_a_scene_is_a_function_of_split_and_index() -> None:
    first, again = scene(7), scene(7)
    assert first.questions == again.questions
    assert np.array_equal(first.image, again.image)
    assert first.image.shape == (128, 128, 3)
    assert first.image.dtype == np.uint8


def test_splits_and_indices_give_different_images() -> None:
    images = {
        scene(index, split=split).image.tobytes()
        for split in ("train", "held-out")
        for index in range(200)
    }
    assert len(images) == 400


@pytest.mark.parametrize(("index", "split"), [(0, "test"), (-1, "train")])
def test_what_there_is_not_is_refused(index: int, split: str) -> None:
    with pytest.raises(ValueError, match="tiny-vqa"):
        scene(index, split=split)


def test_every_task_is_asked_as_often_as_told_in_known_words() -> None:
    for index in range(50):
        questions = scene(index, questions_per_task=3).questions
        assert Counter(q.task for q in questions) == dict.fromkeys(TASKS, 3)
        for question in questions:
            assert set(words(question.question)) <= set(VOCABULARY)
            assert question.answer in VOCABULARY
            assert bool(question.choices) == (question.task == "choice")


@pytest.mark.parametrize(
    ("task", "answers"),
    [("existence", 2), ("relation", 4), ("counting", 5), ("reading", 10), ("choice", 4)],
)
def test_answers_are_balanced(task: str, answers: int) -> None:
    scenes = 1500
    found = Counter(
        asked.question.answer
        for index in range(scenes)
        for asked in compose(index, split="held-out", questions={task: 1})[0].asked
    )
    assert len(found) == answers
    expected = scenes / answers
    assert all(abs(count - expected) < 5 * expected**0.5 for count in found.values()), found


def test_half_of_the_attribute_questions_take_two_hops() -> None:
    hops = Counter(
        "next to" in asked.question.question
        for index in range(600)
        for asked in compose(index, split="held-out", questions={"attribute": 1})[0].asked
    )
    assert 240 < hops[True] < 360


def test_answers_follow_from_the_objects_in_the_scene() -> None:
    checked: Counter[str] = Counter()
    for index in range(300):
        composition = composed(index, per_task=2)
        world = World(composition)
        for asked in composition.asked:
            question = asked.question
            text, _, options = question.question.partition("?")
            value = world.answer(text.split())
            if question.choices:
                listed = options.replace(")", " ").split()
                assert dict(zip(listed[::2], listed[1::2], strict=True))[question.answer] == value
                assert tuple(listed[1::2]) == question.choices
                assert len(set(question.choices)) == 4
            else:
                assert question.answer == value, (index, question)
            checked[question.task] += 1
    assert checked == dict.fromkeys(TASKS, 600)


def test_a_no_names_a_colour_and_a_shape_that_occur_apart() -> None:
    hard = 0
    for index in range(300):
        composition = composed(index)
        world = World(composition)
        (asked,) = (a for a in composition.asked if a.question.task == "existence")
        *_, color, shape = asked.question.question.rstrip("?").split()
        if asked.question.answer == "no":
            colors, shapes = zip(*world.objects, strict=True)
            assert shape in shapes
            hard += color in colors
    assert hard > 120


def test_the_picture_shows_the_objects_where_they_are_said_to_be() -> None:
    names = list(COLORS)
    palette = np.array([COLORS[name] for name in names])
    for index in range(100):
        world = World(composed(index))
        image = scene(index).image.astype(int)
        for row in range(8):
            for column in range(8):
                middle = image[row * 16 + 5 : row * 16 + 11, column * 16 + 5 : column * 16 + 11]
                pixel = np.median(middle.reshape(-1, 3), axis=0)
                distances = np.abs(palette - pixel).max(axis=1)
                seen = names[int(distances.argmin())] if distances.min() < 40 else None
                assert seen == world.color_at.get((row, column)), (index, row, column)


class World:
    """An oracle apart from the generator: looks the answer up by the words of the question."""

    def __init__(self, composition: Composition) -> None:
        self.objects: dict[tuple[str, str], tuple[int, int]] = {}
        for thing in composition.things:
            name = (list(COLORS)[thing.color], list(SINGULAR.values())[thing.shape])
            self.objects[name] = divmod(thing.cell, 8)
        self.color_at = {place: name[0] for name, place in self.objects.items()}
        self.sign = ["efhklntuxz"[letter] for letter, _ in composition.sign]

    def the_only(self, word: str) -> tuple[str, str]:
        (found,) = (name for name in self.objects if word in name)
        return found

    def neighbour(self, name: tuple[str, str]) -> tuple[str, str]:
        row, column = self.objects[name]
        near = defaultdict(list)
        for other, (r, c) in self.objects.items():
            near[max(abs(r - row), abs(c - column))].append(other)
        (found,) = near[1]
        return found

    def answer(self, text: list[str]) -> str:
        match text:
            case ["is", "there", "a", color, shape]:
                return "yes" if (color, shape) in self.objects else "no"
            case ["where", "is", "the", color, shape, "relative", "to", "the", other, kind]:
                (row, column), (r, c) = self.objects[color, shape], self.objects[other, kind]
                if abs(column - c) > abs(row - r):
                    return "left" if column < c else "right"
                return "above" if row < r else "below"
            case ["how", "many", color, "shapes", "are", "there"]:
                return str(sum(name[0] == color for name in self.objects))
            case ["how", "many", shapes, "are", "there"]:
                return str(sum(name[1] == SINGULAR[shapes] for name in self.objects))
            case ["what", "color", "is", "the", "shape", "next", "to", "the", color, shape]:
                return self.neighbour((color, shape))[0]
            case ["which", "shape", "is", "next", "to", "the", color, shape]:
                return self.neighbour((color, shape))[1]
            case ["what", "color", "is", "the", shape]:
                return self.the_only(shape)[0]
            case ["which", "shape", "is", color]:
                return self.the_only(color)[1]
            case ["what", "letter", "is", "on", "the", "sign"]:
                (letter,) = self.sign
                return letter
            case ["what", "is", "the", ordinal, "letter", "on", "the", "sign"]:
                return self.sign[["first", "second", "third"].index(ordinal)]
        raise AssertionError(f"no rule for {' '.join(text)!r}")
