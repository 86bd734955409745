"""What `demo` does, step by step; each step is the function behind the verb of that name."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p_export.atomic_file import write_atomically
from p2p_export.errors import InputError
from p2p_export.progress import Progress
from p2p_export.report.view import Table

MODELS = ("tiny-llava", "tiny-qwen2.5-vl")
DATA = "tiny-vqa"
FOLDER = "demo"
QUESTIONS = 1000
# Calibration questions when the demo is asked to be smaller than its default.
CALIBRATION = 100
# By this file a folder is known as an earlier demo, which may be replaced.
MARKER = "README.txt"
MARKER_TEXT = """\
Made by `p2p-export demo`, which replaces these files when it runs again.

plan.json, proxies.safetensors   which layers stop computing visual tokens, and what stands in
bundle/                          what a device needs; `p2p-export run` asks it
evaluation.json, bench.json      answers and times, dense and pruned
report.html                      all of it on one page
"""


@dataclass(frozen=True)
class Demonstration:
    """What came out; `problems` are checks that failed, in a sentence each."""

    folder: Path
    headline: Table
    problems: tuple[str, ...]
    seconds: float

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def to_dict(self) -> dict[str, Any]:
        return {
            "plan": str(self.folder / "plan.json"),
            "bundle": str(self.bundle),
            "report": str(self.report),
            "columns": list(self.headline.columns),
            "rows": [list(row) for row in self.headline.rows],
            "problems": list(self.problems),
            "seconds": round(self.seconds, 1),
        }


def demonstrate(folder: Path, *, model: str, questions: int, progress: Progress) -> Demonstration:
    """Plan, export, validate, ask, measure, report; everything lands in `folder`.

    Raises `InputError` when `folder` holds something that is no earlier demo.
    """
    from p2p_export.calibration.evaluation import evaluate
    from p2p_export.calibration.planning import make_plan
    from p2p_export.cli.bundle_answers import answers_of
    from p2p_export.cli.verbs.evaluate import evaluation_document
    from p2p_export.engines.benchmark import bench_bundle
    from p2p_export.engines.validation import validate_bundle
    from p2p_export.export import export_bundle
    from p2p_export.plan import Plan
    from p2p_export.report import build_view, read_bench, read_evaluation, write_report
    from p2p_export.report.headline import headline_table
    from p2p_export.report.measurements import read_evidence

    began = time.monotonic()
    prepare_folder(folder)
    problems = []

    progress.say(f"1 of 6: which layers of {model} need no visual computation?")
    outcome = make_plan(
        model,
        DATA,
        output=folder / "plan.json",
        calibration_size=min(CALIBRATION, questions),
        validation_size=questions,
        test_size=questions,
        force=True,
        progress=progress,
    )
    if not outcome.passed:
        problems.append("the planned layers together miss the tolerance on the validation split")

    progress.say("2 of 6: export, rewrite, record what PyTorch answers")
    plan = Plan.load(folder / "plan.json")
    bundle = folder / "bundle"
    manifest = export_bundle(plan, bundle, force=True, progress=progress)

    progress.say("3 of 6: validate the bundle against PyTorch")
    validation = validate_bundle(bundle)
    problems += [f"{c.name}: {c.detail}" for c in validation.checks if not c.passed]
    progress.say(f"{sum(c.passed for c in validation.checks)} checks passed")

    progress.say(f"4 of 6: ask both decoders of the bundle {questions} held-out questions")
    evaluation = evaluate(
        plan,
        split="test",
        dense_answerer=answers_of(bundle, plan, dense=True),
        planned_answerer=answers_of(bundle, plan),
        progress=progress,
    )
    document = evaluation_document(evaluation, bundle=str(bundle))
    write_json(folder / "evaluation.json", document)

    progress.say("5 of 6: time both decoders in turn")
    tokens = (manifest.flops or {})["tokens"]
    visual = int(tokens["visual"])
    bench = bench_bundle(
        bundle, visual_tokens=visual, text_tokens=int(tokens["total"]) - visual, repeats=40
    )
    write_json(folder / "bench.json", bench.to_dict())

    progress.say("6 of 6: the page")
    answered, measured = (
        read_evaluation(folder / "evaluation.json"),
        read_bench(folder / "bench.json"),
    )
    write_report(build_view(plan, answered, measured), folder / "report.html")
    headline = headline_table(plan, read_evidence(plan), answered, measured)
    return Demonstration(folder, headline, tuple(problems), time.monotonic() - began)


def prepare_folder(folder: Path) -> None:
    """Make `folder`, or take over one of an earlier demo; `InputError` for any other folder."""
    marker = folder / MARKER
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is in the way and no folder; name another with -o")
    if folder.is_dir() and any(folder.iterdir()):
        earlier = marker.is_file() and marker.read_text("utf-8", "replace").startswith(
            MARKER_TEXT.splitlines()[0]
        )
        if not earlier:
            raise InputError(
                f"{folder} holds files of yours and no earlier demo; name another folder with -o"
            )
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(marker, MARKER_TEXT.encode())


def write_json(path: Path, document: Any) -> None:
    """A JSON file, whole or not at all."""
    write_atomically(path, (json.dumps(document, indent=1) + "\n").encode())
