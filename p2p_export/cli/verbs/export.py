"""`p2p-export --plan ...`: from a plan to a validated bundle. The export has no verb."""

from __future__ import annotations

import argparse

from p2p_export.cli.arguments import add_json, one_of, positive_int
from p2p_export.cli.console import Console
from p2p_export.export_options import LAYOUTS, LOWERINGS, PRECISIONS, TARGETS_TO_COME
from p2p_export.manifest import Manifest
from p2p_export.manifest_schema import TARGETS
from p2p_export.quantities import bytes_text, flops_text, percent_text

DESCRIPTION = """\
Take the visual computation a vision-language model does not need out of its engine.

Without a verb: export the model a plan is for, rewrite its decoder as the plan says, and write a
bundle that a device can run; it is validated against PyTorch before it appears."""

EXAMPLE = """\
p2p-export plan --model tiny-llava --data tiny-vqa -o plan.json
p2p-export --plan plan.json --target ort -o bundle/
p2p-export run bundle/ --image photo.png --prompt "is there a red circle ?\""""

# DESIGN names device profiles; the first of them come with TensorRT.
DEVICES_TO_COME = ("orin-nano-8gb",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan", metavar="FILE", required=True, help="the plan.json to export")
    parser.add_argument(
        "--target",
        type=one_of(*TARGETS, later=TARGETS_TO_COME),
        default=TARGETS[0],
        metavar="T",
        help="what will run the bundle: ort (ONNX Runtime), the default",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", default="bundle", help="the bundle to write (bundle/)"
    )
    parser.add_argument(
        "--model", metavar="M", help="folder, hub name or built-in name; default: the plan's own"
    )
    parser.add_argument(
        "--device",
        type=one_of("auto", later=DEVICES_TO_COME),
        default="auto",
        metavar="D",
        help="the device it will run on: auto (this version knows no device profiles)",
    )
    parser.add_argument(
        "--precision",
        type=one_of(*PRECISIONS, later=("bf16",)),
        metavar="P",
        help=f"{' or '.join(PRECISIONS)} (default: {PRECISIONS[0]} for ort)",
    )
    parser.add_argument(
        "--lowering",
        type=one_of(*LOWERINGS),
        default=LOWERINGS[0],
        metavar="L",
        help="how planned layers are written: elided (they compute and cache text rows only), "
        "fused (their cache holds visual rows too) or literal (site by site; the reference)",
    )
    parser.add_argument(
        "--layout",
        type=one_of(*LAYOUTS),
        default=LAYOUTS[0],
        metavar="L",
        help="how visual rows are named: index (any rows, several images, rows that differ) or "
        "span (one block, at the same place in every row of the batch)",
    )
    parser.add_argument(
        "--only", type=one_of("decoder"), metavar="decoder", help="leave out vision and embedding"
    )
    parser.add_argument(
        "--max-context", type=positive_int, metavar="N", help="most tokens in one context"
    )
    parser.add_argument(
        "--max-batch", type=positive_int, metavar="N", help="most rows of one batch"
    )
    parser.add_argument(
        "--max-visual-tokens", type=positive_int, metavar="N", help="most visual tokens of a row"
    )
    parser.add_argument(
        "--require-engine",
        action="store_true",
        help="return 1 when no engine could be built here (ort needs none, so it never does)",
    )
    parser.add_argument(
        "--no-dense", action="store_true", help="leave the unpruned decoder out of the bundle"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace the bundle that stands at the output"
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="let transformers run Python code that comes with the checkpoint",
    )
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    from p2p_export.export import export_bundle
    from p2p_export.plan import Plan

    manifest = export_bundle(
        Plan.load(args.plan),
        args.output,
        target=args.target,
        model=args.model,
        precision=args.precision,
        lowering=args.lowering,
        layout=args.layout,
        only=args.only,
        dense=not args.no_dense,
        max_context=args.max_context,
        max_batch=args.max_batch,
        max_visual_tokens=args.max_visual_tokens,
        force=args.force,
        trust_remote_code=args.trust_remote_code,
        progress=console.progress,
    )
    if args.json:
        console.document({"bundle": args.output, "manifest": manifest.to_dict()})
    else:
        _show(manifest, args.output, console)
    return 0


def _show(manifest: Manifest, output: str, console: Console) -> None:
    planned = len(manifest.layers)
    size = sum(file.size for file in manifest.files.values())
    console.say(
        f"wrote {output}: {manifest.model.id}, {planned} of {manifest.decoder.num_hidden_layers} "
        f"layers planned, {manifest.precision}, {bytes_text(size)}, validated against PyTorch"
    )
    for convention in ("p2p", "needed"):
        count = (manifest.flops or {}).get(convention)
        if count:
            console.say(
                f"FLOPs of one prefill, convention {convention}: {flops_text(count['dense'])} -> "
                f"{flops_text(count['pruned'])} ({percent_text(count['ratio'])})"
            )
    console.say(f"ask it: p2p-export run {output} --image FILE --prompt TEXT")
