"""`p2p-export doctor`: what is here, what really starts, what to do about the rest."""

from __future__ import annotations

import argparse

from p2p_export.cli.arguments import add_json
from p2p_export.cli.console import Console
from p2p_export.cli.diagnosis import Diagnosis, diagnose

DESCRIPTION = """\
Look at this machine: Python, memory, the version of each dependency against the range we support,
ONNX Runtime's execution providers (each is started, not only listed), TensorRT, built-in models.

Returns 1 when something that is needed is missing, out of range or does not start."""

EXAMPLE = "p2p-export doctor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    diagnosis = diagnose()
    if args.json:
        console.document(diagnosis.to_dict())
    else:
        _show(diagnosis, console)
    return 1 if diagnosis.problems else 0


def _show(diagnosis: Diagnosis, console: Console) -> None:
    console.table("Machine", ["", ""], [[fact.name, fact.value] for fact in diagnosis.machine])
    console.table(
        "Dependencies",
        ["package", "for", "supported", "installed", ""],
        [[d.name, d.extra, d.supported, d.installed or "–", d.verdict] for d in diagnosis.packages],
    )
    console.table(
        "Engines",
        ["", "starts", ""],
        [[e.name, "yes" if e.starts else "no", e.detail] for e in diagnosis.engines],
    )
    models = ", ".join(diagnosis.builtin_models) or "none"
    console.say(f"Built-in models: {models}")
    for problem in diagnosis.problems:
        console.say(f"To do: {problem}")
    if not diagnosis.problems:
        console.say("Nothing to do.")
