"""`p2p-export demo`: the whole way on a built-in model, with one table and a page at the end."""

from __future__ import annotations

import argparse
from pathlib import Path

from p2p_export.cli.arguments import add_json, one_of, positive_int
from p2p_export.cli.console import Console
from p2p_export.cli.demonstration import DATA, FOLDER, MODELS, QUESTIONS, demonstrate

DESCRIPTION = f"""\
The whole way on a model that comes with p2p-export and really sees: measure which layers need no
visual computation, export, validate against PyTorch, ask the pruned bundle about held-out images,
measure both decoders, and write a page about it.

Writes {FOLDER}/plan.json, {FOLDER}/bundle/ and {FOLDER}/report.html; running it again replaces
them. Returns 1 when the plan misses its tolerance or the bundle fails a check."""

EXAMPLE = "p2p-export demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        type=one_of(*MODELS),
        default=MODELS[0],
        metavar="M",
        help=f"{' or '.join(MODELS)} (default {MODELS[0]})",
    )
    parser.add_argument(
        "--questions",
        type=positive_int,
        default=QUESTIONS,
        metavar="N",
        help=f"{DATA} questions to choose the plan with, and as many to test it ({QUESTIONS})",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", default=FOLDER, help=f"the folder to write ({FOLDER}/)"
    )
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    result = demonstrate(
        Path(args.output), model=args.model, questions=args.questions, progress=console.progress
    )
    if args.json:
        console.document(result.to_dict())
    else:
        table = result.headline
        console.table(
            f"{args.model} on {DATA}: {table.title.lower()}", table.columns, list(table.rows)
        )
        console.say(f"took {result.seconds:.0f} s; open {result.report}")
        console.say(f'ask it: p2p-export run {result.bundle} --image FILE --prompt "..."')
    for problem in result.problems:
        console.progress.say(f"p2p-export: {problem}")
    return 1 if result.problems else 0
