"""Prefill of a decoder of real width, dense against pruned, on ONNX Runtime's CPU provider.

    python benchmarks/decoder_prefill.py --hidden-size 1024 --layers 8 --planned 2-7

Weights and proxies are random: time does not depend on them. Dense and pruned runs take turns in
one process; medians are printed beside the FLOPs ratios of both conventions.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
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
from p2p_export.flops import Tokens, needed_flops, p2p_flops
from p2p_export.graphs import export_decoder, rewrite_decoder
from p2p_export.models import DecoderSpec, family_of
from p2p_export.plan import Mode, PlanModel, PlanProxies
from p2p_export.proxies import tensor_name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--intermediate-size", type=int, default=2816)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--key-value-heads", type=int, default=16)
    parser.add_argument("--planned", default="2-7", help="first-last planned layer")
    parser.add_argument("--mode", choices=["proxy", "frozen"], default="proxy")
    parser.add_argument("--visual-tokens", type=int, default=576)
    parser.add_argument("--text-tokens", type=int, default=124)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    first, last = (int(part) for part in args.planned.split("-"))
    layers: dict[int, Mode] = dict.fromkeys(range(first, last + 1), args.mode)
    with tempfile.TemporaryDirectory() as folder:
        spec, sessions = prepare(args, layers, Path(folder))
        seconds = measure(spec, sessions, args)
    tokens = Tokens(args.visual_tokens + args.text_tokens, args.visual_tokens)
    dense, pruned = (statistics.median(times) for times in seconds)
    print(f"machine    {platform.processor() or platform.machine()}, {args.threads} thread(s)")
    print(
        f"versions   onnxruntime {onnxruntime.__version__}, torch {torch.__version__}, "
        f"transformers {__version__}"
    )
    print(f"shapes     {spec}")
    print(f"tokens     {args.visual_tokens} visual + {args.text_tokens} text, batch 1, fp32")
    print(f"plan       layers {first}-{last} {args.mode}, lowering fused, layout index")
    print(f"protocol   {args.repeats} runs each, taking turns, after one warm-up; medians")
    print(f"dense      {1e3 * dense:.1f} ms  ({spread(seconds[0])})")
    print(f"pruned     {1e3 * pruned:.1f} ms  ({spread(seconds[1])})")
    print(f"time       {pruned / dense:.3f} of dense")
    for name, count in (("needed", needed_flops), ("p2p", p2p_flops)):
        print(f"{name:10} {count(spec, tokens, layers) / count(spec, tokens):.3f} of dense FLOPs")


def prepare(
    args: argparse.Namespace, layers: dict[int, Mode], folder: Path
) -> tuple[DecoderSpec, list[Any]]:
    """Export a decoder with random weights and rewrite it; dense and pruned session."""
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
    plan = Plan(PlanModel("random"), layers, proxies=PlanProxies("none"))
    rewrite_decoder(dense, plan, proxies, folder / "decoder.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    return spec, [
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        for path in (dense, folder / "decoder.onnx")
    ]


def measure(
    spec: DecoderSpec, sessions: list[Any], args: argparse.Namespace
) -> tuple[list[float], list[float]]:
    """Seconds of each prefill, dense and pruned in turn; the first round is dropped."""
    length = args.visual_tokens + args.text_tokens
    before = min(20, args.text_tokens)
    visual = np.arange(before, before + args.visual_tokens)
    text = np.setdiff1d(np.arange(length), visual)
    empty = np.zeros((1, spec.num_key_value_heads, 0, spec.head_dim), np.float32)
    feeds: dict[str, Any] = {
        "inputs_embeds": np.random.default_rng(1)
        .normal(size=(1, length, spec.hidden_size))
        .astype(np.float32),
        "attention_mask": np.ones((1, length), np.int64),
        "position_ids": np.arange(length)[None],
        "text_index": text[None],
        "visual_index": visual[None],
    }
    for layer in range(spec.num_hidden_layers):
        feeds[f"past_key_values.{layer}.key"] = empty
        feeds[f"past_key_values.{layer}.value"] = empty
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(args.repeats + 1):
        for session, times in zip(sessions, seconds, strict=True):
            wanted = {entry.name for entry in session.get_inputs()}
            own = {name: value for name, value in feeds.items() if name in wanted}
            started = time.perf_counter()
            session.run(["logits"], own)
            times.append(time.perf_counter() - started)
    return seconds[0][1:], seconds[1][1:]


def spread(times: list[float]) -> str:
    return f"{1e3 * min(times):.1f} to {1e3 * max(times):.1f}"


if __name__ == "__main__":
    main()
