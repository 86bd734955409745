"""`bench`: how long a bundle's decoders take, dense and pruned in turn within one run.

A figure without its protocol cannot be repeated, so the report carries shapes, machine, versions,
clock and order of measurement. The ratio of times is held against the ratio of FLOPs in convention
`needed` (what must be computed, dense and pruned alike) and in the paper's own, `p2p`.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export import __version__, flops
from p2p_export.bundle import Bundle
from p2p_export.engines.onnxruntime_backend import OnnxRuntimeOptions, import_onnxruntime
from p2p_export.engines.session import Session, start
from p2p_export.engines.state import State
from p2p_export.errors import InputError
from p2p_export.manifest import Manifest
from p2p_export.models.positions import (
    mrope_position_ids,
    next_position_ids,
    sequential_position_ids,
)
from p2p_export.quantities import bytes_text

SEED = 20262
WARM_UPS = 2
# What an int32 counts, and rounds enough for any statistics.
LARGEST, MOST_REPEATS = 2**31 - 1, 100_000
# Text rows in front of the image, as prompts have them.
TEXT_BEFORE = 4


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median, and the range the middle half of the repeats lies in."""

    median_ms: float
    lower_quartile_ms: float
    upper_quartile_ms: float
    fastest_ms: float
    repeats: int


@dataclass(frozen=True)
class DecoderBench:
    """One decoder. `kv_bytes` is its cache behind the prompt."""

    prefill: Timing
    decode: Timing
    kv_bytes: int


@dataclass(frozen=True)
class BenchReport:
    """Measurements of a bundle. `dense` and the ratios are None when it holds no dense decoder.

    Ratios are pruned over dense: of prefill and decode medians, and of a prefill's FLOPs by
    convention.
    """

    bundle: str
    shapes: Mapping[str, int]
    pruned: DecoderBench
    dense: DecoderBench | None
    prefill_ratio: float | None
    decode_ratio: float | None
    flops_ratio: Mapping[str, float]
    protocol: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    clock: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class BenchPrompt:
    """Arguments of `prefill`, and of the `decode` behind it."""

    inputs_embeds: npt.NDArray[np.float32]
    position_ids: npt.NDArray[np.int64]
    visual_mask: npt.NDArray[np.bool_]
    next_embeds: npt.NDArray[np.float32]
    next_position_ids: npt.NDArray[np.int64]


def bench_bundle(
    path: str | os.PathLike[str],
    *,
    visual_tokens: int,
    text_tokens: int,
    batch: int = 1,
    repeats: int = 20,
    threads: int | None = None,
) -> BenchReport:
    """Time prefill of `text_tokens` + `visual_tokens` rows, and one decode step behind it.

    `threads` None leaves ONNX Runtime its default. Raises `InputError` for sizes below 1 (visual
    tokens: below 0) or beyond the bundle's limits, `BundleError` for a damaged bundle.
    """
    _check_sizes(visual_tokens, text_tokens, batch, repeats)
    options = OnnxRuntimeOptions(threads=threads)
    bundle = Bundle.open(path)
    manifest = bundle.manifest
    _check_memory(manifest, visual_tokens + text_tokens, batch)
    prompt = _prompt(manifest, visual_tokens, text_tokens, batch)
    sessions = {"pruned": start(bundle, options)}
    if manifest.has_dense:
        sessions["dense"] = start(bundle, options, dense=True)
    prefill, states = _time_prefill(sessions, prompt, repeats)
    decode = _time_decode(sessions, prompt, states, repeats)
    measured = {
        name: DecoderBench(prefill[name], decode[name], states[name].nbytes) for name in sessions
    }
    dense = measured.get("dense")
    return BenchReport(
        bundle=str(bundle.folder),
        shapes={"batch": batch, "visual_tokens": visual_tokens, "text_tokens": text_tokens},
        pruned=measured["pruned"],
        dense=dense,
        prefill_ratio=_ratio(prefill) if dense else None,
        decode_ratio=_ratio(decode) if dense else None,
        flops_ratio=_flops_ratio(manifest, visual_tokens, text_tokens),
        protocol=(
            f"{WARM_UPS} warm-ups, then {repeats} rounds; in each round every decoder runs once, "
            "in alternating order; seeded random embeddings; decode: one token behind the same "
            "prompt each time"
        ),
        machine=_machine(threads),
        versions=_versions(),
        clock=_clock(),
    )


def _check_sizes(visual_tokens: int, text_tokens: int, batch: int, repeats: int) -> None:
    for name, value, least, most in (
        ("visual_tokens", visual_tokens, 0, LARGEST),
        ("text_tokens", text_tokens, 1, LARGEST),
        ("batch", batch, 1, LARGEST),
        ("repeats", repeats, 1, MOST_REPEATS),
    ):
        if not least <= value <= most:
            raise InputError(f"{name} is {value} and must be at least {least}, at most {most}")


def _check_memory(manifest: Manifest, length: int, batch: int) -> None:
    """Refuse a prompt whose attention scores, [B,H,S,S] in float32, do not fit this machine."""
    needed = 4 * batch * manifest.decoder.num_attention_heads * length**2
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise InputError(
            f"the attention of {batch} prompts of {length} tokens takes {bytes_text(needed)} and "
            f"this machine has {bytes_text(there)} of memory; ask for fewer tokens or a smaller "
            "batch"
        )


def _time_prefill(
    sessions: Mapping[str, Session], prompt: BenchPrompt, repeats: int
) -> tuple[dict[str, Timing], dict[str, State]]:
    states: dict[str, State] = {}

    def call(name: str) -> None:
        _, states[name] = sessions[name].prefill(
            prompt.inputs_embeds, prompt.position_ids, prompt.visual_mask
        )

    return _time_in_turn(list(sessions), call, repeats), states


def _time_decode(
    sessions: Mapping[str, Session],
    prompt: BenchPrompt,
    states: Mapping[str, State],
    repeats: int,
) -> dict[str, Timing]:
    def call(name: str) -> None:
        sessions[name].decode(prompt.next_embeds, prompt.next_position_ids, states[name])

    return _time_in_turn(list(sessions), call, repeats)


def _time_in_turn(
    names: Sequence[str], call: Callable[[str], None], repeats: int
) -> dict[str, Timing]:
    """Round after round, each name once, so that a slow spell of the machine meets all alike."""
    milliseconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(WARM_UPS + repeats):
        for name in names if turn % 2 else reversed(names):
            begin = time.perf_counter_ns()
            call(name)
            taken = (time.perf_counter_ns() - begin) / 1e6
            if turn >= WARM_UPS:
                milliseconds[name].append(taken)
    return {name: _timing(taken) for name, taken in milliseconds.items()}


def _timing(milliseconds: list[float]) -> Timing:
    lower, upper = np.percentile(milliseconds, [25, 75]).tolist()
    return Timing(
        median_ms=statistics.median(milliseconds),
        lower_quartile_ms=lower,
        upper_quartile_ms=upper,
        fastest_ms=min(milliseconds),
        repeats=len(milliseconds),
    )


def _ratio(timings: Mapping[str, Timing]) -> float:
    return timings["pruned"].median_ms / timings["dense"].median_ms


def _prompt(manifest: Manifest, visual_tokens: int, text_tokens: int, batch: int) -> BenchPrompt:
    """One image behind a few text rows; every row of the batch is as long."""
    generator = np.random.default_rng(SEED)
    length, width = visual_tokens + text_tokens, manifest.decoder.hidden_size
    before = min(TEXT_BEFORE, text_tokens - 1)
    visual = np.zeros((batch, length), dtype=np.bool_)
    visual[:, before : before + visual_tokens] = True
    ones = np.ones((batch, length), dtype=np.int64)
    if manifest.positions.scheme == "mrope":
        merge = manifest.positions.spatial_merge_size or 1
        grid = np.array([[1, merge, visual_tokens * merge]] * (batch if visual_tokens else 0))
        positions = mrope_position_ids(ones, visual, grid.reshape(-1, 3), spatial_merge_size=merge)
    else:
        positions = sequential_position_ids(ones)
    return BenchPrompt(
        inputs_embeds=generator.standard_normal((batch, length, width), dtype=np.float32),
        position_ids=positions,
        visual_mask=visual,
        next_embeds=generator.standard_normal((batch, 1, width), dtype=np.float32),
        next_position_ids=next_position_ids(manifest.positions.scheme, positions),
    )


def _flops_ratio(manifest: Manifest, visual_tokens: int, text_tokens: int) -> dict[str, float]:
    tokens = flops.Tokens(total=visual_tokens + text_tokens, visual=visual_tokens)
    spec, layers = manifest.decoder, manifest.layers
    return {
        "p2p": flops.p2p_flops(spec, tokens, layers) / flops.p2p_flops(spec, tokens),
        "needed": flops.needed_flops(spec, tokens, layers) / flops.needed_flops(spec, tokens),
    }


def _machine(threads: int | None) -> dict[str, Any]:
    return {
        "processor": _processor_name(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "system": f"{platform.system()} {platform.release()}",
        "load_average": list(os.getloadavg()),
    }


def _processor_name() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _versions() -> dict[str, str]:
    return {
        "p2p-export": __version__,
        "onnxruntime": str(import_onnxruntime().__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _clock() -> dict[str, Any]:
    clock = time.get_clock_info("perf_counter")
    return {"name": clock.implementation, "resolution_seconds": clock.resolution}
