"""Splits share no image, follow the seed alone, and say what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p_export.calibration.datasets import Dataset
from p2p_export.calibration.samples import Sample
from p2p_export.calibration.splits import SPLIT_NAMES, SplitSizes, split_dataset
from p2p_export.errors import InputError


@dataclass(frozen=True)
class NamedImage:
    image_id: str

    def load(self) -> Any:
        raise AssertionError("a split must not decode images")


def dataset(questions_per_image: list[int]) -> Dataset:
    samples = [
        Sample(f"{image}/{number}", f"q{number}", ("a",), "t", NamedImage(f"image {image}"))
        for image, count in enumerate(questions_per_image)
        for number in range(count)
    ]
    return Dataset("made up", tuple(samples))


SIZES = SplitSizes(calibration=4, validation=10, certification=7, test=5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=30, max_size=50), st.integers(0, 10))
def test_no_image_is_in_two_splits_and_sizes_are_as_asked(counts: list[int], seed: int) -> None:
    splits = split_dataset(dataset(counts), SIZES, seed)
    images = {name: {s.image_id for s in splits[name].samples} for name in SPLIT_NAMES}
    for name in SPLIT_NAMES:
        assert len(splits[name].samples) == getattr(SIZES, name)
        assert not images[name] & set().union(*(images[o] for o in SPLIT_NAMES if o != name))
        assert len({s.id for s in splits[name].samples}) == len(splits[name].samples)
    assert len(images["calibration"]) == SIZES.calibration


def test_the_seed_decides_and_the_order_of_the_data_does_not() -> None:
    data = dataset([3] * 20)
    turned = Dataset("made up", data.samples[::-1])

    def hashes(data: Dataset, seed: int) -> list[str]:
        return [split.sha256 for split in split_dataset(data, SIZES, seed).values()]

    assert hashes(data, 1) == hashes(turned, 1)
    assert hashes(data, 1) != hashes(data, 2)


@pytest.mark.parametrize(
    ("counts", "missing"),
    [([1] * 3, "about 23 more images are missing"), ([1] * 25, "about 1 more image is missing")],
)
def test_too_few_images_are_counted(counts: list[int], missing: str) -> None:
    with pytest.raises(InputError, match=missing):
        split_dataset(dataset(counts), SIZES, 0)
    enough = dataset([1] * 26)
    assert len(split_dataset(enough, SIZES, 0)["test"].samples) == 5


def test_many_questions_on_few_images_are_too_few() -> None:
    with pytest.raises(InputError, match=r"200 questions on 2 images.*about 3 more images"):
        split_dataset(dataset([100] * 2), SIZES, 0)


def test_a_size_that_leaves_nothing_to_measure_is_refused() -> None:
    with pytest.raises(InputError, match="a validation size of 0 is too small"):
        SplitSizes(validation=0)
    with pytest.raises(InputError, match="a test size of -1"):
        SplitSizes(test=-1)
    assert SplitSizes(test=0).test == 0
