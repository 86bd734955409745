"""`p2p-export bench`: how long a bundle's decoders take, measured in turn."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from p2p_export.atomic_file import write_atomically
from p2p_export.cli.arguments import add_json, positive_int, size
from p2p_export.cli.console import Console
from p2p_export.errors import InputError
from p2p_export.output_file import check_output_file
from p2p_export.quantities import bytes_text, percent_text

if TYPE_CHECKING:
    from p2p_export.engines.benchmark import BenchReport, Timing

DESCRIPTION = """\
Time the dense and the pruned decoder of a bundle, in turn within one run, and print both with the
shapes, the machine, the versions and the protocol.

The lengths default to those of the bundle's own example prompt."""

EXAMPLE = """\
p2p-export bench bundle/
p2p-export bench bundle/ --visual-tokens 576 --text-tokens 64 --threads 1 -o bench.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="bundle/", help="the bundle folder")
    parser.add_argument("--visual-tokens", type=size, metavar="N", help="visual rows of the prompt")
    parser.add_argument(
        "--text-tokens", type=positive_int, metavar="N", help="text rows of the prompt"
    )
    parser.add_argument(
        "--batch", type=positive_int, default=1, metavar="N", help="prompts at once (1)"
    )
    parser.add_argument(
        "--repeats", type=positive_int, default=20, metavar="N", help="measured rounds (20)"
    )
    parser.add_argument(
        "--threads", type=positive_int, metavar="N", help="threads of one call (default: all)"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the measurements here, for `report`"
    )
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    from p2p_export.bundle import read_manifest
    from p2p_export.engines.benchmark import bench_bundle

    if args.output:
        check_output_file(args.output, {"the bundle": args.bundle})
    visual, text = args.visual_tokens, args.text_tokens
    if visual is None or text is None:
        tokens = (read_manifest(Path(args.bundle)).flops or {}).get("tokens")
        if tokens is None:
            raise InputError(
                f"{args.bundle} records no example prompt; give --visual-tokens and --text-tokens"
            )
        visual = int(tokens["visual"]) if visual is None else visual
        text = int(tokens["total"] - tokens["visual"]) if text is None else text
    report = bench_bundle(
        args.bundle,
        visual_tokens=visual,
        text_tokens=text,
        batch=args.batch,
        repeats=args.repeats,
        threads=args.threads,
    )
    if args.output:
        content = json.dumps(report.to_dict(), indent=2) + "\n"
        write_atomically(Path(args.output), content.encode())
    if args.json:
        console.document(report.to_dict())
        return 0
    _show(report, console)
    if args.output:
        console.say(f"wrote {args.output}")
    return 0


def _show(report: BenchReport, console: Console) -> None:
    shapes, dense, pruned = report.shapes, report.dense, report.pruned
    rows = [
        [
            phase,
            _timing(getattr(dense, phase)) if dense else "–",
            _timing(getattr(pruned, phase)),
            "–" if ratio is None else percent_text(ratio),
        ]
        for phase, ratio in (("prefill", report.prefill_ratio), ("decode", report.decode_ratio))
    ]
    rows.append(
        [
            "KV cache",
            bytes_text(dense.kv_bytes) if dense else "–",
            bytes_text(pruned.kv_bytes),
            percent_text(pruned.kv_bytes / dense.kv_bytes) if dense else "–",
        ]
    )
    for convention, ratio in report.flops_ratio.items():
        rows.append([f"FLOPs, convention {convention}", "", "", percent_text(ratio)])
    console.table(
        f"{report.bundle}: batch {shapes['batch']}, {shapes['visual_tokens']} visual + "
        f"{shapes['text_tokens']} text tokens; median (quartiles)",
        ["", "dense", "pruned", "pruned / dense"],
        rows,
    )
    machine = report.machine
    console.say(
        f"{machine['processor']}, {machine['cores']} cores, threads {machine['threads'] or 'all'}, "
        f"load {machine['load_average'][0]:.2f}"
    )
    console.say(", ".join(f"{name} {version}" for name, version in report.versions.items()))
    console.say(report.protocol)


def _timing(timing: Timing) -> str:
    return (
        f"{timing.median_ms:.2f} ms ({timing.lower_quartile_ms:.2f}-{timing.upper_quartile_ms:.2f})"
    )
