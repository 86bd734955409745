"""Data by name (`tiny-vqa`, `easy-vqa`) or from a JSON-lines file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from p2p_export.calibration.easy_vqa_questions import easy_vqa_samples
from p2p_export.calibration.json_lines import json_lines_samples
from p2p_export.calibration.samples import Sample
from p2p_export.calibration.tiny_vqa_questions import tiny_vqa_samples
from p2p_export.errors import InputError

BUILTIN_DATASETS = ("tiny-vqa", "easy-vqa")


@dataclass(frozen=True)
class Dataset:
    """Samples in the order of their source. `name` is what `load_dataset` was asked for."""

    name: str
    samples: tuple[Sample, ...]

    @property
    def image_count(self) -> int:
        return len({sample.image_id for sample in self.samples})

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(sample.task for sample in self.samples))


def load_dataset(
    name_or_path: str | Path, *, images: str | Path | None = None, limit: int | None = None
) -> Dataset:
    """Read a dataset; `limit` keeps its first questions only.

    `images` is the folder that a JSON-lines file's image paths are relative to (default: the
    file's own). Raises `InputError` with the line number for anything that cannot be used.
    """
    name = str(name_or_path)
    if limit is not None and limit < 1:
        raise InputError(f"a limit of {limit} questions leaves none; ask for 1 or more")
    if name in BUILTIN_DATASETS and images is not None:
        raise InputError(f"{name} brings its own images; leave --images out")
    if name == "tiny-vqa":
        samples = tiny_vqa_samples(limit)
    elif name == "easy-vqa":
        samples = easy_vqa_samples(limit)
    else:
        samples = json_lines_samples(
            Path(name_or_path), images=None if images is None else Path(images), limit=limit
        )
    return Dataset(name, samples)


def content_hash(samples: Sequence[Sample]) -> str:
    """sha256 over each sample's question, choices, answers, task and image, in order."""
    digest = hashlib.sha256()
    for sample in samples:
        record = (sample.image_id, sample.question, sample.choices, sample.answers, sample.task)
        digest.update(json.dumps(record).encode() + b"\n")
    return digest.hexdigest()
