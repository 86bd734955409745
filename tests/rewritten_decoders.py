"""Random decoders, exported and rewritten, and a host that runs them as DESIGN §4 says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from hook_oracle import Chunk, hooked_logits

from p2p_export import Plan, ProxySet
from p2p_export.graphs import rewrite_decoder
from p2p_export.models import DecoderSpec
from p2p_export.plan import PlanModel, PlanProxies

LAYERS = 5
# fp32 and the same sums in another order: measured at most 2e-6 over these models.
TOLERANCE = 1e-5

PLANS: dict[str, dict[int, str]] = {
    "none": {},
    "prefix": {0: "proxy", 1: "proxy"},
    "suffix": {3: "proxy", 4: "proxy"},
    "middle": {1: "proxy", 2: "proxy"},
    "all": dict.fromkeys(range(LAYERS), "proxy"),
    "isolated": {1: "proxy", 3: "proxy"},
    "last": {4: "proxy"},
    "first": {0: "proxy"},
    "all but last": dict.fromkeys(range(LAYERS - 1), "proxy"),
    "all but first": dict.fromkeys(range(1, LAYERS), "proxy"),
    "frozen": dict.fromkeys(range(LAYERS), "frozen"),
    "frozen prefix": {0: "frozen", 1: "frozen"},
    "frozen last": {4: "frozen"},
    "frozen amid proxy": {1: "proxy", 2: "frozen", 3: "proxy"},
    "frozen amid proxy to the end": {1: "proxy", 2: "frozen", 3: "proxy", 4: "proxy"},
    "proxy amid frozen": {0: "frozen", 1: "proxy", 2: "frozen", 4: "frozen"},
}


@dataclass(frozen=True)
class Exported:
    """One family's random model, exported once for all tests."""

    model: Any
    spec: DecoderSpec
    proxies: ProxySet
    folder: Path

    def graph(self, modes: dict[int, str], lowering: Any, layout: Any = "index") -> Path:
        name = "-".join(f"{i}{m}" for i, m in sorted(modes.items())) or "none"
        path = self.folder / f"{lowering}-{layout}-{name}.onnx"
        if not path.exists():
            rewrite_decoder(
                self.folder / "decoder.dense.onnx",
                plan(modes),
                self.proxies,
                path,
                lowering=lowering,
                layout=layout,
            )
        return path

    def session(
        self, modes: dict[int, str], lowering: str, layout: str = "index", **options: Any
    ) -> Any:
        path = self.graph(modes, lowering, layout)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        for key, value in options.items():
            setattr(settings, key, value)
        return onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


def plan(modes: dict[int, str]) -> Plan:
    layers: dict[int, Any] = dict(modes)
    return Plan(PlanModel("random"), layers, proxies=PlanProxies("proxies.safetensors"))


def chunk(
    spec: DecoderSpec, visual: list[str], *, seed: int = 0, padding: tuple[int, ...] = ()
) -> Chunk:
    """One row a string: `v` visual, `t` text, `.` padding; random embeddings and positions."""
    random = np.random.default_rng(seed)
    rows = np.array([list(row) for row in visual])
    batch, length = rows.shape
    axes = (3,) if spec.position_axes == 3 else ()
    return Chunk(
        inputs_embeds=random.normal(size=(batch, length, spec.hidden_size)).astype(np.float32),
        position_ids=random.integers(0, 40, size=(*axes, batch, length)),
        visual=rows == "v",
        attention_mask=(rows != ".").astype(np.int64),
    )


def index(mask: np.ndarray) -> np.ndarray:
    """Row numbers of each batch row, -1 behind them, at least one column."""
    width = max(1, int(mask.sum(axis=1).max()))
    result = np.full((mask.shape[0], width), -1, dtype=np.int64)
    for row, marks in enumerate(mask):
        places = [column for column, mark in enumerate(marks) if mark]
        result[row, : len(places)] = places
    return result


class Host:
    """What a caller keeps between calls, written from the words of DESIGN §4."""

    def __init__(self, session: Any, spec: DecoderSpec, batch: int, floats: Any) -> None:
        self.session, self.spec = session, spec
        self.wanted = {entry.name for entry in session.get_inputs()}
        empty = np.zeros((batch, spec.num_key_value_heads, 0, spec.head_dim), dtype=floats)
        self.cache = [empty] * (2 * spec.num_hidden_layers)
        self.mask = np.zeros((batch, 0), dtype=np.int64)
        self.text_mask = np.zeros((batch, 0), dtype=np.int64)
        axes = (3,) if spec.position_axes == 3 else ()
        self.visual_positions = np.zeros((*axes, batch, 0), dtype=np.int64)
        self.visual_places = np.zeros((batch, 0), dtype=np.int64)

    def call(self, part: Chunk) -> np.ndarray:
        past = self.mask.shape[1]
        self.mask = np.concatenate([self.mask, part.attention_mask], axis=1)
        text = index(~part.visual & (part.attention_mask != 0))
        visual = index(part.visual)
        columns = np.flatnonzero(part.visual[0])
        start, end = (columns[0], columns[-1] + 1) if columns.size else (0, 0)
        text_mask = (text >= 0).astype(np.int64)
        if "visual_start" in self.wanted:
            text_mask = np.delete(part.attention_mask, np.s_[start:end], axis=1)
        self.text_mask = np.concatenate([self.text_mask, text_mask], axis=1)
        rows = np.arange(len(visual))[:, None]
        positions = part.position_ids[..., rows, np.maximum(visual, 0)]
        places = np.where(visual < 0, 2**31 - 1, visual + past)
        self.visual_positions = np.concatenate([self.visual_positions, positions], axis=-1)
        self.visual_places = np.concatenate([self.visual_places, places], axis=1)
        feeds = {
            "inputs_embeds": part.inputs_embeds,
            "attention_mask": self.mask,
            "position_ids": part.position_ids,
            "text_index": text,
            "visual_index": visual,
            "visual_start": np.array(start, dtype=np.int64),
            "visual_end": np.array(end, dtype=np.int64),
            "text_attention_mask": self.text_mask,
            "visual_position_ids": self.visual_positions,
            "visual_sequence_index": self.visual_places,
        }
        for layer in range(self.spec.num_hidden_layers):
            feeds[f"past_key_values.{layer}.key"] = self.cache[2 * layer]
            feeds[f"past_key_values.{layer}.value"] = self.cache[2 * layer + 1]
        result = self.session.run(None, {k: v for k, v in feeds.items() if k in self.wanted})
        self.cache = result[1:]
        return np.asarray(result[0])


def run(session: Any, spec: DecoderSpec, chunks: list[Chunk]) -> tuple[list[np.ndarray], Any]:
    host = Host(session, spec, len(chunks[0].inputs_embeds), chunks[0].inputs_embeds.dtype)
    logits = [host.call(part) for part in chunks]
    return logits, host


def relative_error(actual: list[np.ndarray], expected: list[np.ndarray]) -> float:
    return max(
        float(np.abs(a - e).max() / np.abs(e).max()) for a, e in zip(actual, expected, strict=True)
    )


def check(
    exported: Exported,
    modes: dict[int, str],
    chunks: list[Chunk],
    lowering: str,
    layout: str = "index",
) -> None:
    actual, host = run(exported.session(modes, lowering, layout), exported.spec, chunks)
    expected, keys = hooked_logits(exported.model, modes, exported.proxies.tensors, chunks)
    assert relative_error(actual, expected) < TOLERANCE
    real = np.concatenate([part.attention_mask for part in chunks], axis=1) != 0
    visual = np.concatenate([part.visual for part in chunks], axis=1)
    for layer, key in enumerate(keys):
        elided = lowering == "elided" and modes.get(layer) == "proxy"
        kept, held = (real & ~visual, host.text_mask != 0) if elided else (real, real)
        found = host.cache[2 * layer]
        assert found.shape[2] == held.shape[1], f"columns cached by layer {layer}"
        for row in range(len(real)):
            difference = np.abs(found[row][:, held[row]] - key[row][:, kept[row]])
            assert difference.max(initial=0) < TOLERANCE * np.abs(key).max(), f"layer {layer}"
