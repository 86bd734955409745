"""`inspect`: what a plan, a bundle, an ONNX graph or a proxies file holds. No weight is read."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p_export.bundle import Bundle
from p2p_export.errors import InputError
from p2p_export.manifest import DENSE_FILE, MANIFEST_FILE, GraphBindings, Manifest
from p2p_export.plan import Mode, Plan
from p2p_export.quantities import bytes_text
from p2p_export.safetensors_header import read_header

LONGEST_HEADER = 100 * 2**20


@dataclass(frozen=True)
class Inspection:
    """`kind` is bundle, plan, onnx or safetensors; `facts` for programs, `lines` for people."""

    kind: str
    path: str
    facts: Mapping[str, Any]
    lines: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "path": self.path, **self.facts}


def inspect_path(path: str | os.PathLike[str]) -> Inspection:
    """Say what is at `path`; `InputError` when it is nothing we know."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"there is nothing at {path}; check the path")
    if path.is_dir():
        if not (path / MANIFEST_FILE).is_file():
            raise InputError(
                f"{path} is a folder without {MANIFEST_FILE}, so no bundle; name a bundle or a file"
            )
        return _bundle(path)
    if path.name == MANIFEST_FILE:
        return _bundle(path.parent)
    readers = {".json": _plan, ".onnx": _graph, ".safetensors": _tensors}
    if path.suffix not in readers:
        raise InputError(
            f"{path} is nothing we can inspect; name a bundle folder, a plan.json, an .onnx or a "
            ".safetensors file"
        )
    return readers[path.suffix](path)


def layers_text(layers: Mapping[int, Mode]) -> str:
    """ "0-3 proxy, 7 frozen", or "none"."""
    runs: list[tuple[int, int, str]] = []
    for layer, mode in sorted(layers.items()):
        if runs and runs[-1][1] == layer - 1 and runs[-1][2] == mode:
            runs[-1] = (runs[-1][0], layer, mode)
        elif mode != "dense":
            runs.append((layer, layer, mode))
    texts = [f"{a} {mode}" if a == b else f"{a}-{b} {mode}" for a, b, mode in runs]
    return ", ".join(texts) or "none"


def _bundle(path: Path) -> Inspection:
    bundle = Bundle.open(path)
    manifest = bundle.manifest
    size = sum(file.size for file in manifest.files.values())
    lines = [
        f"bundle for target {manifest.target}: {manifest.model.id} ({manifest.model.architecture})",
        f"decoder: {_decoder_text(manifest)}",
        f"planned layers: {layers_text(manifest.layers)}",
        f"lowering {manifest.lowering}, layout {manifest.layout}, newline rows {manifest.newline}",
        f"dense decoder: {'beside it' if DENSE_FILE in manifest.files else 'left out'}",
        f"vision: {'vision.onnx' if manifest.vision is not None else manifest.vision_missing}",
        f"limits: {_limits_text(manifest)}",
        f"golden: atol {manifest.golden.atol:.3g}, rtol {manifest.golden.rtol:.3g}, prompts from "
        f"{manifest.golden.source}",
        f"engine: {json.dumps(manifest.engine) if manifest.engine else 'none'}",
        f"{len(manifest.files)} files, {bytes_text(size)}",
        "versions: " + ", ".join(f"{name} {value}" for name, value in manifest.versions.items()),
    ]
    return Inspection("bundle", str(path), {"manifest": manifest.to_dict()}, tuple(lines))


def _plan(path: Path) -> Inspection:
    plan = Plan.load(path)
    count = plan.model.num_hidden_layers
    lines = [
        f"plan for {plan.model.id} ({plan.model.architecture or 'architecture not said'})",
        f"planned layers: {layers_text(plan.layers)}" + (f" of {count}" if count else ""),
        f"proxies: {plan.proxies.file if plan.proxies else 'none'}",
        f"tolerance: {plan.tolerance if plan.tolerance is not None else 'not said'}",
        f"planner: {plan.planner or 'not said'}",
        "certificate: " + ("none" if plan.certificate is None else json.dumps(plan.certificate)),
    ]
    return Inspection("plan", str(path), {"plan": plan.to_dict()}, tuple(lines))


def _graph(path: Path) -> Inspection:
    from p2p_export.graph_bindings import load_graph, read_bindings

    model, bindings = load_graph(path), read_bindings(path)
    operators = Counter(node.op_type for node in model.graph.node)
    external = sorted(
        {
            entry.value
            for tensor in model.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
    )
    proxies = sorted(t.name for t in model.graph.initializer if t.name.startswith("proxy."))
    opsets = {opset.domain or "ai.onnx": opset.version for opset in model.opset_import}
    facts = {
        "producer": model.producer_name,
        "opsets": opsets,
        "nodes": len(model.graph.node),
        "operators": dict(operators.most_common()),
        "weight_files": external,
        "proxy_constants": proxies,
        "inputs": _bindings_dict(bindings)["inputs"],
        "outputs": _bindings_dict(bindings)["outputs"],
    }
    opset_text = ", ".join(f"{name} {version}" for name, version in opsets.items())
    lines = [
        f"ONNX graph by {model.producer_name or 'an unknown producer'}, opset {opset_text}",
        f"{len(model.graph.node)} nodes: "
        + ", ".join(f"{count} {name}" for name, count in operators.most_common(8)),
        f"weights: {', '.join(external) or 'inside the file'}",
        f"constants from proxies: {len(proxies)}",
        *_binding_lines("input", bindings),
        *_binding_lines("output", bindings),
    ]
    return Inspection("onnx", str(path), facts, tuple(lines))


def _tensors(path: Path) -> Inspection:
    tensors = read_header(path)
    size = sum(entry.length for entry in tensors.values())
    dtypes = Counter(entry.dtype for entry in tensors.values())
    facts = {
        "tensors": {
            name: {"dtype": entry.dtype, "shape": list(entry.shape)}
            for name, entry in tensors.items()
        }
    }
    shown = [f"  {name} {e.dtype} {list(e.shape)}" for name, e in list(tensors.items())[:12]]
    rest = len(tensors) - len(shown)
    lines = [
        f"{len(tensors)} tensors ({', '.join(f'{n} {d}' for d, n in dtypes.items())}), "
        f"{bytes_text(size)}",
        *shown,
        *([f"  and {rest} more"] if rest > 0 else []),
    ]
    return Inspection("safetensors", str(path), facts, tuple(lines))


def _decoder_text(manifest: Manifest) -> str:
    spec = manifest.decoder
    return (
        f"{spec.num_hidden_layers} layers, hidden {spec.hidden_size}, "
        f"{spec.num_attention_heads} heads ({spec.num_key_value_heads} for keys and values), "
        f"vocabulary {spec.vocab_size}, {manifest.precision}"
    )


def _limits_text(manifest: Manifest) -> str:
    limits = manifest.limits
    named = (
        ("context", limits.max_context),
        ("batch", limits.max_batch),
        ("visual tokens", limits.max_visual_tokens),
    )
    return ", ".join(f"{name} {value}" for name, value in named if value is not None) or "none"


def _bindings_dict(bindings: GraphBindings) -> dict[str, list[dict[str, Any]]]:
    def side(values: Any) -> list[dict[str, Any]]:
        return [{"name": b.name, "dtype": b.dtype, "shape": list(b.shape)} for b in values]

    return {"inputs": side(bindings.inputs), "outputs": side(bindings.outputs)}


def _binding_lines(side: str, bindings: GraphBindings) -> list[str]:
    """The bindings, with the cache of all layers but the first in one line."""
    values = bindings.inputs if side == "input" else bindings.outputs
    cached = [b for b in values if b.role.startswith(("past_", "present_"))]
    others = [b for b in values if b not in cached]
    lines = [f"  {side} {b.name} {b.dtype} {list(b.shape)}" for b in (*others, *cached[:2])]
    if len(cached) > 2:
        lines.append(f"  and {len(cached) - 2} more of the cache")
    return lines
