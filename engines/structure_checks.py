"""Checks of what a bundle is made of: files, graphs, plan, proxies, weights. Nothing is run.

They need packages of the toolchain (onnx, safetensors, jsonschema), imported where they are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from p2p_export.bundle import Bundle, differing_content
from p2p_export.engines.check import Check
from p2p_export.engines.onnxruntime_backend import (
    OnnxRuntimeOptions,
    differing_binding,
    start_session,
)
from p2p_export.errors import BundleError
from p2p_export.json_reading import read_json
from p2p_export.manifest import DECODER_FILE, PLAN_FILE, PROXIES_FILE
from p2p_export.plan import Plan
from p2p_export.proxies import ProxySet, Site
from p2p_export.safetensors_header import read_header

_SITE = re.compile(r"^proxy\.layers\.(\d+)\.([kv])\.image$")
_RESIDUAL = re.compile(r"^proxy\.layers\.(\d+)-(\d+)\.residual\.image$")
_LAYER = re.compile(r"^layers\.(\d+)(\.|/|$)")


def content(bundle: Bundle) -> Iterator[Check]:
    """Every file has the content it was written with."""
    damaged = differing_content(bundle)
    if damaged is None:
        yield Check("content", True, "sha256 of every file as in the manifest")
    else:
        yield Check("content", False, f"the content of {damaged} is not what was written")


def graphs_are_valid(bundle: Bundle) -> Iterator[Check]:
    """Each graph passes `onnx.checker`, by path, so that graphs of any size do."""
    import onnx

    # `rewrite` links weights into another folder, and the checker refuses any linked file.
    linked = [one for one in bundle.manifest.files if bundle.path(one).stat().st_nlink > 1]
    for name in bundle.manifest.graphs:
        if linked:
            reason = f"{linked[0]} has a hard link elsewhere, which the checker does not read"
            yield Check(f"onnx checker {name}", True, reason, skipped=True)
            continue
        try:
            onnx.checker.check_model(str(bundle.path(name)), full_check=True)
        except Exception as error:  # noqa: BLE001 - checker, protobuf and shape inference differ
            reason = str(error).strip().splitlines()[0]
            yield Check(f"onnx checker {name}", False, reason)
        else:
            yield Check(f"onnx checker {name}", True, "valid")


def bindings_match(bundle: Bundle) -> Iterator[Check]:
    """Each graph loads in ONNX Runtime and has the inputs and outputs the manifest lists."""
    for name, listed in bundle.manifest.graphs.items():
        session = start_session(bundle.path(name), OnnxRuntimeOptions(threads=1))
        difference = differing_binding(session, listed)
        count = f"{len(listed.inputs)} inputs and {len(listed.outputs)} outputs as in the manifest"
        yield Check(f"bindings {name}", difference is None, difference or count)


def plan_matches(bundle: Bundle) -> Iterator[Check]:
    """plan.json names the layers and the model that the manifest names."""
    manifest, plan = bundle.manifest, _plan(bundle)
    modes = {layer: plan.mode(layer) for layer in plan.planned}
    named = {layer: mode for layer, mode in manifest.layers.items() if mode != "dense"}
    differences = [
        f"layer {layer} is {modes.get(layer, 'dense')} in {PLAN_FILE} and "
        f"{named.get(layer, 'dense')} in the manifest"
        for layer in sorted(set(modes) | set(named))
        if modes.get(layer) != named.get(layer)
    ]
    if plan.newline != manifest.newline:
        differences.append(f"newline rows are {plan.newline} in {PLAN_FILE}")
    if plan.model.fingerprint not in (None, manifest.model.fingerprint):
        differences.append(f"{PLAN_FILE} is for other weights than the manifest")
    found = f"{len(modes)} planned layers, as in the manifest"
    yield Check("plan", not differences, differences[0] if differences else found)


def proxies_in_graph(bundle: Bundle) -> Iterator[Check]:
    """The constants that the rewrite put into the graph are the proxies of the plan's layers."""
    plan = _plan(bundle)
    path = bundle.folder / PROXIES_FILE
    if plan.planned and not bundle.has(PROXIES_FILE):
        raise BundleError(f"layers are planned and the bundle holds no {PROXIES_FILE}")
    constants = _inline_constants(_graph(bundle.path(DECODER_FILE)))
    proxies = ProxySet.load(path) if plan.planned else ProxySet({})
    wrong = _wrong_constant(constants, plan, proxies)
    found = f"{len(constants)} constants in the graph equal those of {PROXIES_FILE}"
    yield Check("proxies", wrong is None, wrong or found)


def weights_in_place(bundle: Bundle) -> Iterator[Check]:
    """Each weight of a graph points at the tensor of its own name, and serves its own layer."""
    for name in bundle.manifest.graphs:
        graph = _graph(bundle.path(name))
        wrong = _misplaced_weight(bundle, graph) or _foreign_weight(graph)
        yield Check(f"weights {name}", wrong is None, wrong or "each tensor under its own name")


def _plan(bundle: Bundle) -> Plan:
    document = read_json(
        bundle.path(PLAN_FILE), error=BundleError, advice="export the bundle again"
    )
    return Plan.from_dict(document, where=PLAN_FILE)


def _graph(path: Path) -> Any:
    """The graph at `path` without external weights."""
    import onnx

    try:
        return onnx.load(path, load_external_data=False).graph
    except Exception as error:  # noqa: BLE001 - protobuf raises its own kinds, none documented
        raise BundleError(f"{path.name} is not an ONNX model: {type(error).__name__}") from None


def _inline_constants(graph: Any) -> dict[str, npt.NDArray[Any]]:
    """The vectors of the proxies that the rewrite added, by name."""
    from onnx import numpy_helper

    return {
        tensor.name: numpy_helper.to_array(tensor).ravel()
        for tensor in graph.initializer
        if _SITE.match(tensor.name) or _RESIDUAL.match(tensor.name)
    }


def _wrong_constant(
    constants: Mapping[str, npt.NDArray[Any]], plan: Plan, proxies: ProxySet
) -> str | None:
    """What is wrong with the first constant that is not as plan and proxies want it, or None."""
    expected_layers = {layer for layer in plan.planned if plan.mode(layer) == "proxy"}
    seen: dict[str, set[int]] = {"k": set(), "v": set()}
    for name, constant in constants.items():
        site, region = _SITE.match(name), _RESIDUAL.match(name)
        if site is not None:
            layer = int(site[1])
            seen[site[2]].add(layer)
            expected = proxies.vector(layer, cast(Site, site[2])).astype(np.float64)
        else:
            assert region is not None
            first, last = int(region[1]), int(region[2])
            planned = set(plan.planned)
            if not planned.issuperset(range(first, last + 1)) or first - 1 in planned:
                return f"{name} is in the graph and layers {first} to {last} are no such region"
            expected = _residual(proxies, first, last)
        # Sums may round the other way in the last place.
        if (
            expected.shape != constant.shape
            or (np.abs(expected - constant.astype(np.float64)) > np.spacing(np.abs(constant))).any()
        ):
            return f"{name} in the graph differs from {PROXIES_FILE}"
    for part, layers in seen.items():
        for layer in sorted(layers ^ expected_layers):
            where = "in the graph and not in the plan" if layer in layers else "not in the graph"
            return f"layer {layer}: the proxy of {part} is {where}"
    return None


def _residual(proxies: ProxySet, first: int, last: int) -> npt.NDArray[np.float64]:
    """What layers `first` to `last` add to a visual row: the sum of µ_o + µ_down."""
    total = np.zeros(())
    for layer in range(first, last + 1):
        total = total + proxies.vector(layer, "o").astype(np.float64)
        total = total + proxies.vector(layer, "down").astype(np.float64)
    return total


def _misplaced_weight(bundle: Bundle, graph: Any) -> str | None:
    headers: dict[str, dict[str, tuple[int, int]]] = {}
    for tensor in graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if not entries:
            continue
        file = entries.get("location", "")
        if file not in headers:
            headers[file] = {
                name: (entry.offset, entry.length)
                for name, entry in read_header(bundle.path(file)).items()
            }
        place = (int(entries.get("offset", 0)), int(entries.get("length", 0)))
        if headers[file].get(tensor.name) != place:
            return f"{tensor.name} does not point at the tensor of that name in {file}"
    return None


def _foreign_weight(graph: Any) -> str | None:
    """A node of one layer must not read the weights of another."""
    stored = {t.name: _LAYER.match(t.name) for t in graph.initializer if t.external_data}
    for node in graph.node:
        scope = _LAYER.match(node.name)
        for name in node.input:
            owner = stored.get(name)
            if owner and (scope is None or scope[1] != owner[1]):
                return f"node {node.name} reads {name}, a weight of another layer"
    return None
