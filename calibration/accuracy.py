"""Counts of right answers, overall and per task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from p2p_export.calibration.samples import Sample


@dataclass(frozen=True)
class Accuracy:
    """`correct` of `total` answers are right; `tasks` maps a task to its own two counts."""

    correct: int
    total: int
    tasks: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The share of right answers, 0 when nothing was asked."""
        return self.correct / self.total if self.total else 0.0

    @classmethod
    def count(cls, samples: Sequence[Sample], hits: Iterable[bool]) -> Accuracy:
        """Count `hits`, one per sample."""
        tasks: dict[str, tuple[int, int]] = {}
        for sample, hit in zip(samples, hits, strict=True):
            correct, total = tasks.get(sample.task, (0, 0))
            tasks[sample.task] = (correct + bool(hit), total + 1)
        correct = sum(count[0] for count in tasks.values())
        return cls(correct, len(samples), tasks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "correct": self.correct,
            "total": self.total,
            "tasks": {task: list(counts) for task, counts in self.tasks.items()},
        }

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.correct}/{self.total})"
