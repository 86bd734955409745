"""`p2p-export inspect`: what is in a file of ours."""

from __future__ import annotations

import argparse

from p2p_export.cli.arguments import add_json
from p2p_export.cli.console import Console

DESCRIPTION = """\
Say what is in a plan.json, a bundle folder, an ONNX graph or a .safetensors file (proxies, say).

Reads headers and structure, never the weights; needs no torch."""

EXAMPLE = """\
p2p-export inspect plan.json
p2p-export inspect bundle/
p2p-export inspect bundle/decoder.onnx --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a plan, a bundle, a graph or proxies")
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    from p2p_export.inspection import inspect_path

    inspection = inspect_path(args.file)
    if args.json:
        console.document(inspection.to_dict())
    else:
        for line in inspection.lines:
            console.say(line)
    return 0
