"""`p2p-export flops`: what a plan saves, counted under two named conventions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from p2p_export.cli.arguments import add_json, positive_int
from p2p_export.cli.console import Console
from p2p_export.cli.layer_list import layer_list
from p2p_export.errors import InputError
from p2p_export.flops import Tokens, kv_cache_bytes, needed_flops, p2p_flops
from p2p_export.models.decoder_spec import DecoderSpec
from p2p_export.plan import Mode, Plan
from p2p_export.quantities import bytes_text, flops_text, percent_text

DESCRIPTION = """\
FLOPs of one prefill, dense and planned, from a model's config alone (no weights).

Convention `p2p` is the paper's: every row of every layer of a dense model, full attention.
Convention `needed` leaves out rows that nobody reads later, for dense and planned alike;
measured time over dense time is to be held against this one."""

EXAMPLE = """\
p2p-export flops --model tiny-llava --layers 8-11 --tokens 100 --visual-tokens 64
p2p-export flops --plan plan.json --tokens 2296 --visual-tokens 2253 --json"""

# The cache holds fp16 on the devices this is asked for.
KV_ITEMSIZE = 2


@dataclass(frozen=True)
class Count:
    """One line of the table: what is counted, dense and planned."""

    convention: str
    dense: float
    planned: float

    @property
    def ratio(self) -> float:
        return self.planned / self.dense


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="M", help="folder, hub name or built-in name")
    layers = parser.add_mutually_exclusive_group()
    layers.add_argument("--plan", metavar="FILE", help="count the layers this plan.json plans")
    layers.add_argument(
        "--layers",
        type=layer_list,
        metavar="LIST",
        help="count these layers as planned, such as 8-11 or 0,5-7:frozen",
    )
    parser.add_argument("--tokens", type=positive_int, metavar="N", help="rows of the prompt")
    parser.add_argument(
        "--visual-tokens", type=positive_int, metavar="N", help="visual rows among them"
    )
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    from p2p_export.models.checkpoint import find_checkpoint

    if args.model is None and args.plan is None:
        raise InputError("no model; name one with --model, or a plan that knows its model (--plan)")
    if args.tokens is None or args.visual_tokens is None:
        raise InputError("the prompt's length is missing; give --tokens and --visual-tokens")
    if args.visual_tokens > args.tokens:
        raise InputError(
            f"--visual-tokens {args.visual_tokens} is above --tokens {args.tokens}; "
            "visual rows are a part of all rows"
        )
    plan = Plan.load(args.plan) if args.plan else None
    checkpoint = find_checkpoint(plan.model.id if args.model is None and plan else args.model)
    spec = checkpoint.spec
    layers: Mapping[int, Mode] = plan.layers if plan else (args.layers or {})
    if plan is not None:
        plan.check_layers(spec.num_hidden_layers)
    beyond = [layer for layer in layers if layer >= spec.num_hidden_layers]
    if beyond:
        raise InputError(
            f"--layers names layer {min(beyond)} and {checkpoint.id} has layers 0 to "
            f"{spec.num_hidden_layers - 1}"
        )
    tokens = Tokens(args.tokens, args.visual_tokens)
    counts = count(spec, tokens, layers)
    cache = Count(
        "kv_cache_bytes",
        kv_cache_bytes(spec, tokens, itemsize=KV_ITEMSIZE),
        kv_cache_bytes(spec, tokens, itemsize=KV_ITEMSIZE, elided=layers),
    )
    if args.json:
        console.document(_document(checkpoint.id, tokens, layers, counts, cache))
    else:
        _show(console, checkpoint.id, tokens, layers, counts, cache)
    return 0


def count(spec: DecoderSpec, tokens: Tokens, layers: Mapping[int, Mode]) -> tuple[Count, ...]:
    """Both conventions for one prompt."""
    return (
        Count("p2p", p2p_flops(spec, tokens), p2p_flops(spec, tokens, layers)),
        Count("needed", needed_flops(spec, tokens), needed_flops(spec, tokens, layers)),
    )


def _document(
    model: str,
    tokens: Tokens,
    layers: Mapping[int, Mode],
    counts: tuple[Count, ...],
    cache: Count,
) -> dict[str, Any]:
    return {
        "model": model,
        "tokens": int(tokens.total),
        "visual_tokens": int(tokens.visual),
        "layers": {str(layer): layers[layer] for layer in sorted(layers)},
        "flops": [{**asdict(c), "ratio": c.ratio} for c in counts],
        "kv_cache_bytes": {
            "itemsize": KV_ITEMSIZE,
            "lowering": "elided",
            "dense": int(cache.dense),
            "planned": int(cache.planned),
            "ratio": cache.ratio,
        },
    }


def _show(
    console: Console,
    model: str,
    tokens: Tokens,
    layers: Mapping[int, Mode],
    counts: tuple[Count, ...],
    cache: Count,
) -> None:
    planned = sum(mode != "dense" for mode in layers.values())
    rows = [
        [
            f"FLOPs, convention {c.convention}",
            flops_text(c.dense),
            flops_text(c.planned),
            percent_text(c.ratio),
        ]
        for c in counts
    ]
    rows.append(
        [
            "KV cache, fp16, lowering elided",
            bytes_text(cache.dense),
            bytes_text(cache.planned),
            percent_text(cache.ratio),
        ]
    )
    console.table(
        f"{model}: one prefill of {tokens.total:.0f} tokens, {tokens.visual:.0f} visual; "
        f"{planned} layers planned",
        ["", "dense", "planned", "planned / dense"],
        rows,
    )
