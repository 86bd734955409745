"""Answers are right or wrong as a reader would say."""

from __future__ import annotations

import pytest
from test_calibration_splits import NamedImage

from p2p_export.calibration.accuracy import Accuracy
from p2p_export.calibration.samples import Sample
from p2p_export.calibration.scoring import is_correct, option_letter, variant

IMAGE = NamedImage("i")
YES = Sample("1", "is it?", ("yes", "yeah"), "t", IMAGE)
SECOND = Sample("2", "which?", ("b",), "t", IMAGE, choices=("red", "dark blue", "I"))


@pytest.mark.parametrize("answer", ["yes", "Yes.", " YES!", '"yeah"'])
def test_case_and_punctuation_do_not_count(answer: str) -> None:
    assert variant(YES) == "exact-match"
    assert is_correct(YES, answer)


@pytest.mark.parametrize("answer", ["no", "", "yes it is", "y"])
def test_another_answer_is_wrong(answer: str) -> None:
    assert not is_correct(YES, answer)


@pytest.mark.parametrize(
    "answer", ["b", "B", "(B)", "B.", "b)", "B. dark blue", "(b) so", "Dark blue."]
)
def test_an_option_is_named_by_its_letter_or_its_text(answer: str) -> None:
    assert variant(SECOND) == "choice-letter"
    assert is_correct(SECOND, answer)


@pytest.mark.parametrize("answer", ["a", "C.", "red", "blue", "D", "", "be", "I"])
def test_another_option_is_wrong(answer: str) -> None:
    assert not is_correct(SECOND, answer)


def test_a_lone_letter_is_a_letter_before_it_is_a_text() -> None:
    assert option_letter("a", ("b", "a")) == "A"
    assert option_letter("I", ("red", "dark blue", "I")) == "C"
    assert option_letter("z", ("x", "y")) is None


def test_an_answer_of_punctuation_alone_is_not_the_empty_answer() -> None:
    sample = Sample("3", "which sign?", ("?",), "t", IMAGE)
    assert is_correct(sample, "?")
    assert not is_correct(sample, "")


def test_accuracy_counts_per_task() -> None:
    other = Sample("4", "q", ("a",), "u", IMAGE)
    accuracy = Accuracy.count([YES, other, YES], [True, False, False])
    assert (accuracy.correct, accuracy.total) == (1, 3)
    assert accuracy.tasks == {"t": (1, 2), "u": (0, 1)}
    assert str(accuracy) == "0.333 (1/3)"
