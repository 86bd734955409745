"""Operators of ONNX Runtime's own in place of what the portable graph spells out.

Its optimizer fuses norms, SiLU and scaled products by itself when a session starts; rotary
embeddings and attention over a cache it leaves as they are. A graph for target `ort` says
`RotaryEmbedding` and, where heads are not grouped, `MultiHeadAttention` instead; the portable form
(opset 18 alone) stays for every other target.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx

from p2p_export.atomic_file import write_atomically
from p2p_export.graph_bindings import load_graph
from p2p_export.graphs.live_nodes import keep_live_nodes
from p2p_export.graphs.passes.onnxruntime_attention import OnnxRuntimeAttention
from p2p_export.graphs.passes.onnxruntime_rotary import DOMAIN, OnnxRuntimeRotary
from p2p_export.graphs.surgeon import export_graph, import_graph


@dataclass(frozen=True)
class Fused:
    """How many of each became one node."""

    rotations: int
    attentions: int


def use_onnxruntime_operators(path: Path) -> Fused:
    """Rewrite the graph at `path` in place. External weights are neither read nor moved."""
    model = load_graph(path)
    graph = import_graph(model)
    rotary, attention = OnnxRuntimeRotary(), OnnxRuntimeAttention()
    for one in (rotary, attention):
        one(graph)
    fused = Fused(rotary.fused, attention.fused)
    keep_live_nodes(graph)
    rewritten = export_graph(graph, model)
    if fused.rotations and all(entry.domain != DOMAIN for entry in rewritten.opset_import):
        rewritten.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    write_atomically(path, rewritten.SerializeToString())
    return fused
