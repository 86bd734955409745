"""`easy-vqa` as a dataset: the official test questions that its package ships."""

from __future__ import annotations

from pathlib import Path

from p2p_export.calibration.samples import FileImage, Sample
from p2p_export.errors import InputError


def easy_vqa_samples(limit: int | None) -> tuple[Sample, ...]:
    """The first `limit` official test questions; `InputError` when the package is missing."""
    try:
        import easy_vqa
    except ImportError:
        raise InputError(
            "easy-vqa comes with a package that is not installed; run `pip install easy-vqa`"
        ) from None
    paths = easy_vqa.get_test_image_paths()
    opened: dict[int, FileImage] = {}
    samples: list[Sample] = []
    rows = list(zip(*easy_vqa.get_test_questions(), strict=True))[:limit]
    for number, (question, answer, image) in enumerate(rows):
        if image not in opened:
            where = f"easy-vqa test image {image}"
            opened[image] = FileImage.open(Path(paths[image]), where=where)
        samples.append(
            Sample(
                id=f"easy-vqa test {number}",
                question=question,
                answers=(answer,),
                task="easy-vqa",
                image=opened[image],
            )
        )
    return tuple(samples)
