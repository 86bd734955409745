"""`p2p-export rewrite`: the graph step alone."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from p2p_export.cli.arguments import add_json, one_of
from p2p_export.cli.console import Console
from p2p_export.errors import InputError
from p2p_export.export_options import LAYOUTS, LOWERINGS
from p2p_export.output_file import check_output_file

DESCRIPTION = """\
Rewrite a dense decoder graph as a plan says; no weight is read and none is copied.

The dense graph is one that p2p-export wrote (decoder.dense.onnx of a bundle). The pruned graph
shares its weight file, which is linked beside it when the output lies in another folder."""

EXAMPLE = "p2p-export rewrite bundle/decoder.dense.onnx --plan plan.json -o pruned.onnx"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("graph", metavar="decoder.onnx", help="the dense decoder graph")
    parser.add_argument("--plan", metavar="FILE", required=True, help="the plan.json")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the pruned graph to write"
    )
    parser.add_argument(
        "--proxies", metavar="FILE", help="proxies.safetensors in place of the one the plan names"
    )
    parser.add_argument(
        "--lowering",
        type=one_of(*LOWERINGS),
        default=LOWERINGS[0],
        metavar="L",
        help="how planned layers are written: elided, fused or literal",
    )
    parser.add_argument(
        "--layout",
        type=one_of(*LAYOUTS),
        default=LAYOUTS[0],
        metavar="L",
        help="how visual rows are named: index or span",
    )
    parser.add_argument("--force", action="store_true", help="replace a file at the output")
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    from p2p_export.graphs import rewrite_decoder
    from p2p_export.plan import Plan, PlanProxies
    from p2p_export.proxies import ProxySet

    output = Path(args.output)
    check_output_file(output, {"the plan": args.plan})
    if output.exists() and not args.force:
        raise InputError(f"{output} is there already; name another file or use --force")
    plan = Plan.load(args.plan)
    if args.proxies is not None:
        own = Path(args.proxies).absolute()
        plan = replace(plan, proxies=PlanProxies(str(own)))
    report = rewrite_decoder(
        Path(args.graph),
        plan,
        ProxySet.for_plan(plan),
        output,
        lowering=args.lowering,
        layout=args.layout,
    )
    if args.json:
        console.document({"output": str(output), **report.to_dict()})
        return 0
    console.say(
        f"wrote {output}: {len(report.proxy_layers)} proxy and {len(report.frozen_layers)} frozen "
        f"layers, {report.nodes_before} -> {report.nodes_after} nodes, in {report.seconds:.2f} s"
    )
    if report.weight_files:
        console.say(f"it needs beside it: {', '.join(report.weight_files)}")
    return 0
