"""Prefill and decode of a decoder of real width, dense against pruned, on ONNX Runtime (CPU).

    python benchmarks/decoder_speed.py --planned 2-7 --lowering elided,fused --layout index,span

Weights and proxies are random: time does not depend on them. All decoders take turns in one
process; medians are printed beside the FLOPs ratios of both conventions.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    __version__,
)

from p2p_export import Plan, ProxySet
from p2p_export.engines.context import Context
from p2p_export.engines.onnxruntime_backend import OnnxRuntimeDecoder, OnnxRuntimeOptions
from p2p_export.engines.row_layouts import ROW_LAYOUTS
from p2p_export.flops import Tokens, needed_flops, p2p_flops
from p2p_export.graphs import export_decoder, rewrite_decoder
from p2p_export.graphs.onnxruntime_operators import use_onnxruntime_operators
from p2p_export.models import DecoderSpec, family_of
from p2p_export.plan import Mode, PlanModel, PlanProxies
from p2p_export.proxies import tensor_name

# Text rows in front of the image.
BEFORE = 20
DENSE = "dense"


@dataclass
class Variant:
    """One decoder: what it caches and how long its calls took, in seconds."""

    decoder: OnnxRuntimeDecoder
    layout: str
    cache_bytes: int = 0
    state: Any = None


def main() -> None:
    args = parse_arguments()
    layers = planned_layers(args)
    with tempfile.TemporaryDirectory() as folder:
        spec, variants = prepare(args, layers, Path(folder))
        prefill = take_turns(variants, lambda v: run_prefill(v, spec, args), args.repeats)
        decode = take_turns(variants, lambda v: run_decode(v, spec), args.decode_repeats)
    tokens = Tokens(args.visual_tokens + args.text_tokens, args.visual_tokens)
    print(f"machine   {processor()}, {os.cpu_count()} cores, {args.threads} thread(s)")
    print(
        f"versions  onnxruntime {onnxruntime.__version__}, torch {torch.__version__}, "
        f"transformers {__version__}"
    )
    print(f"shapes    {spec}")
    print(f"tokens    {args.visual_tokens} visual + {args.text_tokens} text, batch 1, fp32")
    print(f"plan      {args.planned} {args.mode}; operators {args.operators}")
    print(
        f"protocol  {args.repeats} prefills and {args.decode_repeats} decodes behind the prompt, "
        "taking turns, after one warm-up; medians (fastest to slowest)"
    )
    for name, count in (("needed", needed_flops), ("p2p", p2p_flops)):
        print(f"{name:9} {count(spec, tokens, layers) / count(spec, tokens):.3f} of dense FLOPs")
    for name, variant in variants.items():
        print(f"{name:15} cache {variant.cache_bytes / 2**20:6.1f} MiB")
        for what, times in (("prefill", prefill), ("decode", decode)):
            median, dense = (statistics.median(times[n]) for n in (name, DENSE))
            spread = f"{1e3 * min(times[name]):.1f} to {1e3 * max(times[name]):.1f}"
            print(f"    {what:8} {1e3 * median:8.1f} ms ({spread})  {median / dense:.3f} of dense")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--intermediate-size", type=int, default=2816)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--key-value-heads", type=int, default=16)
    parser.add_argument("--planned", default="2-7", help="planned layers, as 0-1,5 or none")
    parser.add_argument("--mode", choices=["proxy", "frozen"], default="proxy")
    parser.add_argument("--lowering", default="elided", help="one or several, comma-separated")
    parser.add_argument("--layout", default="index", help="one or several, comma-separated")
    parser.add_argument(
        "--operators",
        choices=["onnxruntime", "portable"],
        default="onnxruntime",
        help="as for target ort, dense and pruned alike, or opset 18 alone",
    )
    parser.add_argument("--visual-tokens", type=int, default=576)
    parser.add_argument("--text-tokens", type=int, default=124)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--decode-repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def planned_layers(args: argparse.Namespace) -> dict[int, Mode]:
    layers: dict[int, Mode] = {}
    for part in args.planned.split(",") if args.planned != "none" else ():
        first, _, last = part.partition("-")
        layers |= dict.fromkeys(range(int(first), int(last or first) + 1), args.mode)
    return layers


def prepare(
    args: argparse.Namespace, layers: dict[int, Mode], folder: Path
) -> tuple[DecoderSpec, dict[str, Variant]]:
    """Export a decoder with random weights and rewrite it in every way asked for."""
    torch.manual_seed(0)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        ),
        text_config=LlamaConfig(
            hidden_size=args.hidden_size,
            intermediate_size=args.intermediate_size,
            num_hidden_layers=args.layers,
            num_attention_heads=args.heads,
            num_key_value_heads=args.key_value_heads,
            vocab_size=1000,
        ),
    )
    model = LlavaForConditionalGeneration(config).eval()
    family = family_of(config)
    spec = family.decoder_spec(config)
    dense = export_decoder(model, family, spec, folder)
    random = np.random.default_rng(0)
    proxies = ProxySet(
        {
            tensor_name(layer, site): random.normal(size=spec.site_size(site)).astype(np.float32)
            for layer in layers
            for site in ("k", "v", "o", "down")
        }
    )
    own_operators = args.operators == "onnxruntime"
    plan = Plan(PlanModel("random"), layers, proxies=PlanProxies("none"))
    options = OnnxRuntimeOptions(threads=args.threads)
    variants: dict[str, Variant] = {}
    ways: Any = itertools.product(args.lowering.split(","), args.layout.split(","))
    for lowering, layout in ways:
        name = f"{lowering} {layout}"
        path = folder / f"{lowering}-{layout}.onnx"
        rewrite_decoder(dense, plan, proxies, path, lowering=lowering, layout=layout)
        if own_operators:
            use_onnxruntime_operators(path)
        variants[name] = Variant(OnnxRuntimeDecoder(path, spec, options), layout)
    if own_operators:
        use_onnxruntime_operators(dense)
    baseline = {DENSE: Variant(OnnxRuntimeDecoder(dense, spec, options), "index")}
    return spec, baseline | variants


def take_turns(
    variants: dict[str, Variant], call: Callable[[Variant], None], repeats: int
) -> dict[str, list[float]]:
    """Seconds of each call; round after round, every decoder once; the first round is dropped."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(repeats + 1):
        for name, variant in variants.items():
            started = time.perf_counter()
            call(variant)
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def run_prefill(variant: Variant, spec: DecoderSpec, args: argparse.Namespace) -> None:
    length = args.visual_tokens + args.text_tokens
    visual = np.zeros((1, length), dtype=np.bool_)
    before = min(BEFORE, args.text_tokens)
    visual[:, before : before + args.visual_tokens] = True
    run(variant, spec, visual, None)


def run_decode(variant: Variant, spec: DecoderSpec) -> None:
    behind = variant.state
    run(variant, spec, np.zeros((1, 1), dtype=np.bool_), behind)
    variant.state = behind  # the same prompt each time


def run(variant: Variant, spec: DecoderSpec, visual: Any, state: Any) -> None:
    if state is None:
        state = variant.decoder.empty_cache(1), Context.empty(1, 1)
    cache, context = state
    length, ones = visual.shape[1], np.ones(visual.shape, dtype=np.int64)
    positions = (np.arange(length) + context.length)[None]
    rows = ROW_LAYOUTS[variant.layout](visual, ones)
    context = context.with_rows(ones, positions, rows)
    random = np.random.default_rng(1)
    embeds = random.standard_normal((1, length, spec.hidden_size), dtype=np.float32)
    feeds = {
        "inputs_embeds": embeds,
        "position_ids": positions,
        **rows.feeds,
        **context.feeds(),
    }
    wanted = variant.decoder.input_names
    _, cache = variant.decoder.run({n: feeds[n] for n in feeds if n in wanted}, cache)
    variant.state, variant.cache_bytes = (cache, context), cache.nbytes


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


if __name__ == "__main__":
    main()
