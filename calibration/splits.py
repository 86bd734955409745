"""Four splits that share no image: calibration, validation, certification, test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import numpy as np

from p2p_export.calibration.datasets import Dataset, content_hash
from p2p_export.calibration.samples import Sample
from p2p_export.errors import InputError

SplitName = Literal["calibration", "validation", "certification", "test"]
SPLIT_NAMES: tuple[SplitName, ...] = ("calibration", "validation", "certification", "test")


@dataclass(frozen=True)
class SplitSizes:
    """Questions asked for in each split; 0 leaves a split empty."""

    calibration: int = 100
    validation: int = 1000
    certification: int = 0
    test: int = 1000

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            least = 1 if name in ("calibration", "validation") else 0
            if size < least:
                raise InputError(f"a {name} size of {size} is too small; ask for {least} or more")


@dataclass(frozen=True)
class Split:
    """The samples of one split, in the order they are asked."""

    name: SplitName
    samples: tuple[Sample, ...]

    @property
    def sha256(self) -> str:
        return content_hash(self.samples)

    @property
    def image_count(self) -> int:
        return len({sample.image_id for sample in self.samples})

    def to_dict(self) -> dict[str, Any]:
        return {"questions": len(self.samples), "images": self.image_count, "sha256": self.sha256}


def split_dataset(dataset: Dataset, sizes: SplitSizes, seed: int) -> Mapping[SplitName, Split]:
    """Deal the images, shuffled by `seed`, to the splits in order; no image goes to two.

    Calibration takes one question of each of its images, so that its mean is over as many images
    as samples; the others take every question of an image until they are full. The order of the
    dataset does not matter. Raises `InputError` saying how many images are missing.
    """
    by_image: dict[str, list[Sample]] = {}
    for sample in sorted(dataset.samples, key=lambda s: (s.image_id, s.task, s.question, s.id)):
        by_image.setdefault(sample.image_id, []).append(sample)
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    images = [list(by_image)[place] for place in generator.permutation(len(by_image))]
    _check_enough(dataset, len(images), sizes)

    calibration = [
        by_image[image][int(generator.integers(len(by_image[image])))]
        for image in images[: sizes.calibration]
    ]
    splits = {"calibration": Split("calibration", tuple(calibration))}
    waiting = iter(images[sizes.calibration :])
    for name in SPLIT_NAMES[1:]:
        wanted: int = getattr(sizes, name)
        samples: list[Sample] = []
        while len(samples) < wanted:
            image = next(waiting, None)
            if image is None:
                raise _too_few(dataset, len(images), sizes, name, wanted - len(samples))
            samples += by_image[image]
        splits[name] = Split(name, tuple(samples[:wanted]))
    return cast(Mapping[SplitName, Split], splits)


def _check_enough(dataset: Dataset, images: int, sizes: SplitSizes) -> None:
    if images < sizes.calibration:
        raise _too_few(
            dataset, images, sizes, "calibration", sizes.calibration - images, per_image=1.0
        )


def _too_few(
    dataset: Dataset,
    images: int,
    sizes: SplitSizes,
    name: str,
    short: int,
    *,
    per_image: float | None = None,
) -> InputError:
    """The error for a split that stays `short` questions, with all later splits still to fill."""
    rest = SPLIT_NAMES[SPLIT_NAMES.index(cast(SplitName, name)) + 1 :]
    mean = len(dataset.samples) / images
    missing = int(
        -(-short // (per_image or mean)) + -(-sum(getattr(sizes, r) for r in rest) // mean)
    )
    asked = ", ".join(f"{n} {getattr(sizes, n)}" for n in SPLIT_NAMES if getattr(sizes, n))
    return InputError(
        f"{dataset.name} has {len(dataset.samples)} questions on {images} images, too few for the "
        f"splits asked for ({asked} questions, no image in two splits): about {missing} more "
        f"{'image is' if missing == 1 else 'images are'} missing; add some or ask for smaller "
        "splits"
    )
