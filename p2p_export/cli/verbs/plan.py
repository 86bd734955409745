"""`p2p-export plan`: calibrate, sweep, choose, re-check."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from p2p_export.cli.arguments import add_json, positive_int, size, tolerance
from p2p_export.cli.console import Console
from p2p_export.quantities import accuracy_text, flops_text, percent_text

if TYPE_CHECKING:
    from p2p_export.calibration.planning import PlanOutcome

DESCRIPTION = """\
Measure which decoder layers need no visual computation and write that down as a plan.

Splits the questions by image; computes the proxies on the calibration split; patches layers one
after another, from the input and from the output, on the validation split; takes per direction the
largest run within the tolerance; measures the union of both. Writes plan.json and, beside it,
proxies.safetensors. Returns 1 (files written, no certificate) when the union misses it."""

EXAMPLE = """\
p2p-export plan --model tiny-llava --data tiny-vqa -o plan.json
p2p-export plan --model ./my-checkpoint --data questions.jsonl --images photos/ --tolerance 0.02"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", metavar="M", required=True, help="folder, hub name or built-in name"
    )
    parser.add_argument(
        "--data",
        metavar="FILE",
        required=True,
        help="JSON lines (docs/data.md), or built-in: tiny-vqa, easy-vqa",
    )
    parser.add_argument("--images", metavar="DIR", help="folder the image paths are relative to")
    parser.add_argument(
        "--tolerance",
        type=tolerance,
        default=0.03,
        metavar="T",
        help="accuracy that may be lost, relative to the dense accuracy (0.03)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="plan.json", help="the plan to write (plan.json)"
    )
    parser.add_argument("--limit", type=positive_int, metavar="N", help="first N questions only")
    for name, default in (("calibration", 100), ("validation", 1000)):
        parser.add_argument(
            f"--{name}-size",
            type=positive_int,
            default=default,
            metavar="N",
            help=f"questions of the {name} split ({default})",
        )
    for name, default in (("certification", 0), ("test", 1000)):
        parser.add_argument(
            f"--{name}-size",
            type=size,
            default=default,
            metavar="N",
            help=f"questions of the {name} split, 0 for none ({default})",
        )
    parser.add_argument("--seed", type=size, default=0, metavar="N", help="of the splits (0)")
    parser.add_argument(
        "--max-new-tokens",
        type=positive_int,
        metavar="N",
        help="longest answer to generate (default: what the data's answers need)",
    )
    parser.add_argument(
        "--newline",
        choices=("visual", "text"),
        default="visual",
        help="what image_newline rows (LLaVA-NeXT, LLaVA-OneVision) count as (visual)",
    )
    parser.add_argument("--force", action="store_true", help="replace the plan at the output")
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="let transformers run Python code that comes with the checkpoint",
    )
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    from p2p_export.calibration.planning import make_plan

    outcome = make_plan(
        args.model,
        args.data,
        output=Path(args.output),
        images=args.images,
        limit=args.limit,
        tolerance=args.tolerance,
        calibration_size=args.calibration_size,
        validation_size=args.validation_size,
        certification_size=args.certification_size,
        test_size=args.test_size,
        seed=args.seed,
        max_new_tokens=args.max_new_tokens,
        newline=args.newline,
        force=args.force,
        trust_remote_code=args.trust_remote_code,
        progress=console.progress,
    )
    if args.json:
        console.document(outcome.to_dict())
    else:
        show_outcome(outcome, console)
    if not outcome.passed:
        console.progress.say(
            f"p2p-export: the union of both runs misses the tolerance of "
            f"{percent_text(args.tolerance)}; the files are written, ask for a larger one"
        )
    return 0 if outcome.passed else 1


def show_outcome(outcome: PlanOutcome, console: Console) -> None:
    """What was chosen and what it keeps, in a table."""
    plan = outcome.plan
    regions = ", ".join(
        str(r.first) if r.first == r.last else f"{r.first}-{r.last}" for r in plan.regions
    )
    rows = [
        ["layers planned", "0", f"{len(plan.planned)} ({regions or 'none'})"],
        [
            "accuracy, validation",
            accuracy_text(outcome.dense.correct, outcome.dense.total),
            accuracy_text(outcome.union.correct, outcome.union.total),
        ],
    ]
    for convention in ("p2p", "needed"):
        count = ((plan.evidence or {}).get("flops") or {}).get(convention)
        if count:
            saved = f"{flops_text(count['planned'])} ({percent_text(count['ratio'])})"
            rows.append([f"FLOPs, convention {convention}", flops_text(count["dense"]), saved])
    console.table(f"{plan.model.id}", ["", "dense", "planned"], rows)
    console.say(f"wrote {outcome.plan_path} and {outcome.proxies_path}")
