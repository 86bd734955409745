"""`p2p-export evaluate`: accuracy, dense and planned, on questions planning set apart."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p_export.atomic_file import write_atomically
from p2p_export.cli.arguments import add_json, positive_int
from p2p_export.cli.console import Console
from p2p_export.errors import InputError
from p2p_export.output_file import check_output_file
from p2p_export.quantities import accuracy_text, percent_text

if TYPE_CHECKING:
    from p2p_export.calibration.evaluation import Evaluation

DESCRIPTION = """\
Accuracy of the dense and of the planned model, question by question, with counts per task.

Give a plan, and both answer in PyTorch; give a bundle, and its two decoders answer in its runtime.
The questions are a split that planning set apart by image (test by default); a plan that records
no splits needs --data, which is then used whole."""

EXAMPLE = """\
p2p-export evaluate bundle/ -o evaluation.json
p2p-export evaluate --plan plan.json --split test --limit 200"""

ANSWERED_IN_PYTORCH = "PyTorch, planned layers patched"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="bundle/", nargs="?", help="ask this bundle's decoders")
    parser.add_argument("--plan", metavar="FILE", help="ask PyTorch about this plan")
    parser.add_argument(
        "--split",
        choices=("test", "certification", "validation", "calibration"),
        default="test",
        help="the split of the plan's data (test)",
    )
    parser.add_argument(
        "--data", metavar="FILE", help="where the data is now, or data for a plan without splits"
    )
    parser.add_argument("--images", metavar="DIR", help="folder the image paths are relative to")
    parser.add_argument("--limit", type=positive_int, metavar="N", help="first N questions only")
    parser.add_argument("--model", metavar="M", help="folder or name; default: the plan's own")
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="let transformers run Python code that comes with the checkpoint",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write all answers here, for `p2p-export report`"
    )
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    from p2p_export.calibration.evaluation import evaluate
    from p2p_export.cli.bundle_answers import answers_of
    from p2p_export.manifest import PLAN_FILE
    from p2p_export.plan import Plan

    if (args.bundle is None) == (args.plan is None):
        raise InputError("name either a bundle or a --plan to evaluate, not both and not neither")
    if args.output:
        inputs = {"the bundle": args.bundle, "the plan": args.plan, "the data": args.data}
        check_output_file(args.output, inputs)
    plan = Plan.load(Path(args.bundle) / PLAN_FILE if args.bundle is not None else args.plan)
    evaluation = evaluate(
        plan,
        split=args.split,
        data=args.data,
        images=args.images,
        limit=args.limit,
        checkpoint_name=args.model,
        trust_remote_code=args.trust_remote_code,
        dense_answerer=answers_of(args.bundle, plan, dense=True)
        if args.bundle is not None
        else None,
        planned_answerer=answers_of(args.bundle, plan) if args.bundle is not None else None,
        progress=console.progress,
    )
    document = evaluation_document(evaluation, bundle=args.bundle)
    if args.output:
        write_atomically(Path(args.output), json.dumps(document, indent=1).encode())
    if args.json:
        document.pop("gallery")
        console.document(document)
        return 0
    _show(evaluation, console)
    if args.output:
        console.say(f"wrote {args.output}")
    return 0


def evaluation_document(evaluation: Evaluation, *, bundle: str | None) -> dict[str, Any]:
    """evaluation.json: all answers, and a gallery of some with their images in it."""
    from p2p_export.report.gallery import gallery

    answered = ANSWERED_IN_PYTORCH if bundle is None else "the bundle, in ONNX Runtime"
    return {
        **evaluation.to_dict(),
        "answered_by": answered,
        "gallery": gallery(evaluation.pairs),
    }


def _show(evaluation: Evaluation, console: Console) -> None:
    dense, planned = evaluation.dense, evaluation.planned
    rows = [["all", accuracy_text(dense.correct, dense.total)]]
    rows[0].append(accuracy_text(planned.correct, planned.total))
    rows[0].append(percent_text(planned.value / dense.value) if dense.correct else "–")
    for task, (correct, total) in dense.tasks.items():
        kept, _ = planned.tasks[task]
        ratio = percent_text(kept / correct) if correct else "–"
        rows.append([task, accuracy_text(correct, total), accuracy_text(kept, total), ratio])
    console.table(
        f"{evaluation.data}, {evaluation.split} split, {dense.total} questions",
        ["task", "dense", "planned", "planned / dense"],
        rows,
    )
    same = sum(pair.dense == pair.planned for pair in evaluation.pairs)
    console.say(f"{same} of {dense.total} answers are the same word for word")
