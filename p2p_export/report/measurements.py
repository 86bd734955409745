"""The files a report is made of, read and checked: plan.json, evaluation.json, bench.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p_export.errors import InputError
from p2p_export.json_reading import read_json
from p2p_export.plan import Plan
from p2p_export.report.view import Answered, Curve


@dataclass(frozen=True)
class Score:
    """Right answers of `total`, and [right, asked] by task."""

    correct: int
    total: int
    tasks: Mapping[str, tuple[int, int]]

    @property
    def value(self) -> float:
        return self.correct / self.total if self.total else 0.0

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Score:
        tasks = {name: (int(c), int(t)) for name, (c, t) in value["tasks"].items()}
        return cls(int(value["correct"]), int(value["total"]), tasks)


@dataclass(frozen=True)
class Compared:
    """One quantity, dense and planned."""

    dense: float
    planned: float

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Compared:
        return cls(float(value["dense"]), float(value["planned"]))


@dataclass(frozen=True)
class Flops:
    """A prefill at the mean length of the questions, in both conventions."""

    total_tokens: float
    visual_tokens: float
    p2p: Compared
    needed: Compared

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Flops:
        return cls(
            float(value["tokens"]["mean_total"]),
            float(value["tokens"]["mean_visual"]),
            Compared.read(value["p2p"]),
            Compared.read(value["needed"]),
        )


@dataclass(frozen=True)
class Evidence:
    """What planning measured on its validation split."""

    curves: tuple[Curve, ...]
    dense: Score
    planned: Score
    flops: Flops
    facts: Mapping[str, str]


@dataclass(frozen=True)
class EvaluationResult:
    """evaluation.json: accuracy on a split that planning did not use, and questions to show."""

    data: str
    split: str
    answered_by: str
    dense: Score
    planned: Score
    flops: Flops
    gallery: Sequence[Answered]


@dataclass(frozen=True)
class BenchResult:
    """bench.json: medians in milliseconds and cache bytes, dense and pruned."""

    prefill_ms: Compared
    decode_ms: Compared
    kv_bytes: Compared
    shape: str
    protocol: str
    machine: str


def read_evidence(plan: Plan) -> Evidence | None:
    """The measurements a plan carries, or None for a plan without (written by hand, say)."""
    evidence = plan.evidence
    if evidence is None:
        return None
    with _fields_of("the evidence of the plan", "make the plan again with `p2p-export plan`"):
        accuracy = evidence["accuracy"]
        dense = Score.read(accuracy["dense"])
        data, answers = evidence["data"], evidence["answers"]
        splits = evidence["splits"]
        return Evidence(
            curves=tuple(
                Curve(direction, (dense.value, *_by_count(evidence["curves"][direction])))
                for direction in ("forward", "backward")
            ),
            dense=dense,
            planned=Score.read(accuracy["planned"]),
            flops=Flops.read(evidence["flops"]),
            facts={
                "data": f"{data['name']}: {data['questions']} questions on "
                f"{data['image_count']} images, sha256 {data['sha256'][:12]}…",
                "splits, disjoint by image": "; ".join(
                    f"{name} {split['questions']} questions on {split['images']} images"
                    for name, split in splits.items()
                ),
                "seed of the splits": str(evidence["seed"]),
                "answers": f"greedy, at most {answers['max_new_tokens']} tokens; scored by "
                + ", ".join(answers["scoring"]),
                "versions": _pairs(evidence["versions"]),
            },
        )


def read_evaluation(path: Path) -> EvaluationResult:
    """Read the file that `p2p-export evaluate -o` wrote."""
    document = _json(path, "evaluate")
    with _fields_of(str(path), "write it again with `p2p-export evaluate -o`"):
        return EvaluationResult(
            data=str(document["data"]),
            split=str(document["split"]),
            answered_by=str(document["answered_by"]),
            dense=Score.read(document["dense"]),
            planned=Score.read(document["planned"]),
            flops=Flops.read(document["flops"]),
            gallery=[_answered(item) for item in document["gallery"]],
        )


def read_bench(path: Path) -> BenchResult:
    """Read the file that `p2p-export bench -o` wrote."""
    document = _json(path, "bench")
    with _fields_of(str(path), "write it again with `p2p-export bench -o`"):
        dense, pruned = document["dense"], document["pruned"]
        if dense is None:
            raise InputError(
                f"{path} measured a bundle without its dense decoder, so there is nothing to "
                "compare; export without --no-dense and measure again"
            )
        shapes, machine = document["shapes"], document["machine"]
        threads = machine["threads"] or "all"
        return BenchResult(
            prefill_ms=_medians(dense, pruned, "prefill"),
            decode_ms=_medians(dense, pruned, "decode"),
            kv_bytes=Compared(float(dense["kv_bytes"]), float(pruned["kv_bytes"])),
            shape=f"batch {shapes['batch']}, {shapes['visual_tokens']} visual + "
            f"{shapes['text_tokens']} text tokens",
            protocol=str(document["protocol"]),
            machine=f"{machine['processor']}, {machine['cores']} cores, {threads} threads, "
            f"{machine['system']}, load {machine['load_average'][0]:.1f}; "
            + _pairs(document["versions"]),
        )


def _by_count(points: Sequence[Mapping[str, Any]]) -> list[float]:
    """Accuracies ordered by how many layers are patched."""
    ordered = sorted(points, key=lambda point: point["layers"][1] - point["layers"][0])
    return [Score.read(point).value for point in ordered]


def _medians(dense: Mapping[str, Any], pruned: Mapping[str, Any], phase: str) -> Compared:
    return Compared(float(dense[phase]["median_ms"]), float(pruned[phase]["median_ms"]))


def _answered(item: Mapping[str, Any]) -> Answered:
    image = str(item["image"])
    if not image.startswith("data:image/"):
        raise ValueError("an image of the gallery is not inside the file")
    return Answered(
        image=image,
        question=str(item["question"]),
        truth=" or ".join(map(str, item["answers"])),
        dense=str(item["dense"]),
        pruned=str(item["planned"]),
        task=str(item["task"]),
        dense_correct=bool(item["dense_correct"]),
        pruned_correct=bool(item["planned_correct"]),
    )


def _json(path: Path, verb: str) -> Any:
    advice = f"make it with `p2p-export {verb} -o`"
    try:
        return read_json(path, advice=advice)
    except FileNotFoundError:
        raise InputError(f"there is no {path}; {advice}") from None


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


@contextmanager
def _fields_of(what: str, remedy: str) -> Iterator[None]:
    """A missing or malformed field becomes an `InputError` that names the file."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{what} is not as we write it ({reason}); {remedy}") from None
