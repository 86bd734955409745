"""`decoder.dense.onnx` + plan -> the pruned decoder. Never reads a weight."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx_graphsurgeon as gs

from p2p_export.atomic_file import write_atomically
from p2p_export.errors import InputError, PlanError
from p2p_export.graphs.elided import lower_elided
from p2p_export.graphs.emit import Emitter
from p2p_export.graphs.fused import lower_fused
from p2p_export.graphs.index_rows import IndexRows
from p2p_export.graphs.literal import lower_literal
from p2p_export.graphs.live_nodes import keep_live_nodes
from p2p_export.graphs.locate import DecoderParts, locate_decoder
from p2p_export.graphs.paused_collector import paused_collector
from p2p_export.graphs.rows import Rows
from p2p_export.graphs.shared_weights import shared_weights, weight_files_of
from p2p_export.graphs.span_rows import SpanRows
from p2p_export.output_file import check_output_file
from p2p_export.plan import Plan
from p2p_export.proxies import SITES_NEEDED, ProxySet, tensor_name

Lowering = Literal["literal", "fused", "elided"]
Layout = Literal["index", "span"]

LOWERINGS: Mapping[Lowering, Callable[..., None]] = {
    "literal": lower_literal,
    "fused": lower_fused,
    "elided": lower_elided,
}
LAYOUTS: Mapping[Layout, type[Rows]] = {"index": IndexRows, "span": SpanRows}


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
    graph = gs.import_onnx(model)
    decoder = locate_decoder(graph)
    check_plan_fits(plan, proxies, decoder)
    emitter = Emitter(graph, decoder.dtype)
    rows = LAYOUTS[layout](emitter, decoder)
    LOWERINGS[lowering](graph, decoder, plan.layers, proxies, emitter, rows)
    keep_live_nodes(graph)
    rewritten: onnx.ModelProto = gs.export_onnx(graph)
    rewritten.producer_name = model.producer_name
    del rewritten.metadata_props[:]
    rewritten.metadata_props.extend(model.metadata_props)
    return rewritten


def check_plan_fits(plan: Plan, proxies: ProxySet, decoder: DecoderParts) -> None:
    """Raise `PlanError` unless planned layers exist and their proxies have the graph's widths."""
    plan.check_layers(len(decoder.layers))
    for layer in plan.planned:
        for site in SITES_NEEDED[plan.mode(layer)]:
            vector = proxies.vector(layer, site)
            width = decoder.site_size(layer, site)
            if vector.shape != (width,):
                raise PlanError(
                    f"proxy {tensor_name(layer, site)} has shape {list(vector.shape)} and the "
                    f"graph needs [{width}]; use the proxies of this model"
                )


def _load(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(path, load_external_data=False)
    except FileNotFoundError:
        raise InputError(f"no graph at {path}; check the path") from None
    except Exception as error:  # noqa: BLE001 - protobuf raises its own kinds, none documented
        raise InputError(f"{path} is not an ONNX model: {type(error).__name__}") from None
