"""`p2p-export report`: one HTML page from a plan, an evaluation and a benchmark."""

from __future__ import annotations

import argparse
from pathlib import Path

from p2p_export.cli.console import Console
from p2p_export.errors import InputError
from p2p_export.output_file import check_output_file

DESCRIPTION = """\
Write report.html: one self-contained page (no network) with the plan over depth, the sensitivity
curves, the headline table, FLOPs, cache and latency, and test questions with both answers.

The plan alone will do; what was not measured is said to be missing."""

EXAMPLE = """\
p2p-export report --plan plan.json -o report.html
p2p-export report --plan plan.json --evaluation evaluation.json --bench bench.json --force"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan", metavar="FILE", required=True, help="the plan.json")
    parser.add_argument("--evaluation", metavar="FILE", help="what `p2p-export evaluate -o` wrote")
    parser.add_argument("--bench", metavar="FILE", help="what `p2p-export bench -o` wrote")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="report.html", help="the page (report.html)"
    )
    parser.add_argument("--force", action="store_true", help="replace the page at the output")


def run(args: argparse.Namespace, console: Console) -> int:
    from p2p_export.plan import Plan
    from p2p_export.report import build_view, read_bench, read_evaluation, write_report

    output = Path(args.output)
    inputs = {"the plan": args.plan, "the evaluation": args.evaluation, "the bench": args.bench}
    check_output_file(output, inputs)
    if output.exists() and not args.force:
        raise InputError(f"{output} is there already; name another file or add --force")
    view = build_view(
        Plan.load(args.plan),
        read_evaluation(Path(args.evaluation)) if args.evaluation else None,
        read_bench(Path(args.bench)) if args.bench else None,
    )
    write_report(view, output)
    console.say(f"wrote {output}")
    return 0
