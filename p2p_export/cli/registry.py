"""The verbs: which there are, what each does in a line, and the module that is imported for it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, cast

from p2p_export.cli.console import Console

# The export, which has no verb on the command line.
EXPORT = "export"

VERBS: Mapping[str, str] = {
    "plan": "measure which layers need no visual computation; write plan.json",
    "rewrite": "the graph step alone: a dense decoder.onnx and a plan make a pruned one",
    "validate": "hold a bundle against the PyTorch answers recorded in it",
    "bench": "time the dense and the pruned decoder of a bundle, interleaved",
    "run": "ask a bundle a question about an image",
    "evaluate": "accuracy of the dense and the pruned model on a data set, with counts",
    "report": "one HTML page from a plan, an evaluation and a benchmark",
    "flops": "FLOPs and KV-cache bytes of a model, dense and planned",
    "inspect": "say what is in a plan, a bundle, an ONNX graph or a proxies file",
    "doctor": "what is installed here, what really starts, and what to do about the rest",
    "demo": "the whole way on a built-in model: plan, export, validate, run, report",
}

# Known words of later versions: not listed in any help, but answered with a sentence.
LATER_VERBS = ("build", "serve", "quantize")


class VerbModule(Protocol):
    """What a module below `verbs` offers."""

    DESCRIPTION: str
    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the verb's options."""

    def run(self, args: argparse.Namespace, console: Console) -> int:
        """Do the work; return the exit code, 0 or 1."""


def load_verb(name: str) -> VerbModule:
    """Import the module of one verb (and no other's)."""
    return cast(VerbModule, import_module(f"p2p_export.cli.verbs.{name}"))
