"""`decoder.dense.onnx` + plan -> the pruned decoder. Never reads a weight."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import onnx

from p2p_export.atomic_file import write_atomically
from p2p_export.errors import InputError
from p2p_export.graphs.passes.asked_row import AskedRow
from p2p_export.graphs.passes.decoder_bindings import DecoderBindings
from p2p_export.graphs.passes.elided import ElidedLowering
from p2p_export.graphs.passes.fused import FusedLowering
from p2p_export.graphs.passes.literal import LiteralLowering
from p2p_export.graphs.passes.lowering import Layout, LoweringPass
from p2p_export.graphs.passes.scope_names import scope_names
from p2p_export.graphs.paused_collector import paused_collector
from p2p_export.graphs.shared_weights import shared_weights, weight_files_of
from p2p_export.graphs.surgeon import export_graph, import_graph
from p2p_export.output_file import check_output_file
from p2p_export.plan import Plan
from p2p_export.proxies import ProxySet

Lowering = Literal["literal", "fused", "elided"]

LOWERINGS: Mapping[Lowering, type[LoweringPass]] = {
    "literal": LiteralLowering,
    "fused": FusedLowering,
    "elided": ElidedLowering,
}


@dataclass(frozen=True)
class RewriteReport:
    """What a rewrite did."""

    lowering: str
    layout: str
    proxy_layers: tuple[int, ...]
    frozen_layers: tuple[int, ...]
    nodes_before: int
    nodes_after: int
    weight_files: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def rewrite_decoder(
    dense: Path,
    plan: Plan,
    proxies: ProxySet,
    output: Path,
    *,
    lowering: Lowering = "elided",
    layout: Layout = "index",
) -> RewriteReport:
    """Write to `output` the decoder of `dense` with the plan's layers rewritten.

    With no planned layer the result is the dense graph itself. External weights are shared: when
    `output` lies in another folder their files are hard-linked there (copied across file systems).
    Raises `PlanError` when plan or proxies do not fit the graph, `RewriteError` when the graph is
    not a decoder we can rewrite.
    """
    plan.check_layout(layout)
    started = time.perf_counter()
    model = _load(dense)
    weights = {f"the weight file {name}": output.parent / name for name in weight_files_of(model)}
    check_output_file(
        output, {"the dense graph": dense, "the proxies file": plan.proxies_path, **weights}
    )
    taken = [name for name, path in weights.items() if path.absolute() == output.absolute()]
    if taken:
        raise InputError(f"{output} is where {taken[0]} belongs; name another output")
    nodes_before = len(model.graph.node)
    rewritten = model
    if plan.planned:
        with paused_collector():
            rewritten = _rewritten(model, plan, proxies, lowering, layout)
    with shared_weights(rewritten, dense.parent, output.parent) as weight_files:
        write_atomically(output, rewritten.SerializeToString())
    modes = {layer: plan.mode(layer) for layer in plan.planned}
    return RewriteReport(
        lowering=lowering,
        layout=layout,
        proxy_layers=tuple(i for i, mode in modes.items() if mode == "proxy"),
        frozen_layers=tuple(i for i, mode in modes.items() if mode == "frozen"),
        nodes_before=nodes_before,
        nodes_after=len(rewritten.graph.node),
        weight_files=weight_files,
        seconds=time.perf_counter() - started,
    )


def _rewritten(
    model: onnx.ModelProto, plan: Plan, proxies: ProxySet, lowering: Lowering, layout: Layout
) -> onnx.ModelProto:
    """`model` with the plan's layers written anew; node names of `model` may change."""
    scope_names(model)
    graph = import_graph(model)
    for one in (DecoderBindings(), AskedRow(), LOWERINGS[lowering](plan, proxies, layout)):
        one(graph)
    return export_graph(graph, model)


def _load(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(path, load_external_data=False)
    except FileNotFoundError:
        raise InputError(f"no graph at {path}; check the path") from None
    except Exception as error:  # noqa: BLE001 - protobuf raises its own kinds, none documented
        raise InputError(f"{path} is not an ONNX model: {type(error).__name__}") from None
