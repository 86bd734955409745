"""`p2p-export validate`: does a bundle still answer as PyTorch did?"""

from __future__ import annotations

import argparse

from p2p_export.cli.arguments import add_json
from p2p_export.cli.console import Console

DESCRIPTION = """\
Hold a bundle against the PyTorch answers recorded in it when it was exported.

Checks files and graphs, the plan and its proxies as they stand in the graph, the recorded answers
within their noise floor, and that the session is right over chunks, padding and repetition.
Returns 1 when a check fails. Needs no torch."""

EXAMPLE = "p2p-export validate bundle/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="bundle/", help="the bundle folder")
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    from p2p_export.engines.validation import validate_bundle

    report = validate_bundle(args.bundle)
    if args.json:
        console.document(report.to_dict())
        return 0 if report.passed else 1
    rows = [
        [
            check.name,
            "skipped" if check.skipped else "passed" if check.passed else "FAILED",
            check.detail,
        ]
        for check in report.checks
    ]
    console.table(f"{args.bundle}", ["check", "", ""], rows)
    failed = sum(not check.passed for check in report.checks)
    skipped = sum(check.skipped for check in report.checks)
    console.say(
        f"{failed} of {len(rows)} checks failed"
        if failed
        else f"all {len(rows) - skipped} checks passed" + (f", {skipped} skipped" * bool(skipped))
    )
    return 0 if report.passed else 1
