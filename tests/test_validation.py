"""`validate` passes a good bundle and fails one with a fault planted anywhere it matters."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from exported_bundles import bundle, change_manifest, copy_of, sign
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

from p2p_export import Plan, ProxySet
from p2p_export.engines import validation
from p2p_export.engines.session_checks import session_answers
from p2p_export.engines.validation import ValidationReport, validate_bundle
from p2p_export.errors import BundleError
from p2p_export.graphs import rewrite_decoder

DECODER = "decoder.onnx"
WEIGHTS = "decoder.weights.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_of(bundle("llava"), tmp_path / "bundle")


def failed(report: ValidationReport) -> list[str]:
    return [check.name for check in report.checks if not check.passed]


@pytest.fixture
def without_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the checks that a fault in graph, weights or proxies need not reach."""
    kept = [check for check in validation.CHECKS if check is not session_answers]
    monkeypatch.setattr(validation, "CHECKS", tuple(kept))


def edit_graph(folder: Path, edit: Callable[[Any], Any], name: str = DECODER) -> None:
    model = onnx.load(folder / name, load_external_data=False)
    edit(model.graph)
    onnx.save(model, folder / name)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_a_good_bundle_passes_every_check(family: str) -> None:
    report = validate_bundle(bundle(family))
    assert failed(report) == []
    assert report.passed
    assert not any(check.skipped for check in report.checks)
    assert len(report.checks) >= 15
    assert json.loads(json.dumps(report.to_dict()))["passed"] is True
    # The allowance derives from the noise floor: a good bundle uses a fair part of it.
    assert json.loads((bundle(family) / "manifest.json").read_text())["golden"]["atol"] < 1e-3
    shares = [
        float(check.detail.split(", ")[-1].split("%")[0])
        for check in report.checks
        if check.name.startswith("goldens")
    ]
    assert 1 <= max(shares) <= 60


def proxies_file(folder: Path) -> None:
    tensors = load_file(folder / "proxies.safetensors")
    tensors["layers.1.k.image"] = tensors["layers.1.k.image"] + np.float32(0.01)
    save_file(tensors, folder / "proxies.safetensors")


def proxies_of_another_plan(folder: Path) -> None:
    tensors = load_file(folder / "proxies.safetensors")
    tensors["layers.1.o.image"] = tensors["layers.1.o.image"] + np.float32(0.01)
    save_file(tensors, folder / "proxies.safetensors")


def constant_in_graph(folder: Path) -> None:
    def edit(graph: Any) -> None:
        constant = next(t for t in graph.initializer if t.name == "proxy.layers.2.v.image")
        changed = numpy_helper.to_array(constant) + np.float32(0.01)
        constant.CopyFrom(numpy_helper.from_array(changed, constant.name))

    edit_graph(folder, edit)


def residual_in_graph(folder: Path) -> None:
    def edit(graph: Any) -> None:
        constant = next(t for t in graph.initializer if "residual" in t.name)
        changed = numpy_helper.to_array(constant) * np.float32(1.01)
        constant.CopyFrom(numpy_helper.from_array(changed, constant.name))

    edit_graph(folder, edit)


def swapped_streams(folder: Path) -> None:
    """Text rows taken for visual ones and the reverse."""

    def edit(graph: Any) -> None:
        other = {"text_index": "visual_index", "visual_index": "text_index"}
        for node in graph.node:
            node.input[:] = [other.get(name, name) for name in node.input]

    edit_graph(folder, edit)


def visual_rows_shifted(folder: Path) -> None:
    """Every visual row is taken one place too early."""

    def edit(graph: Any) -> None:
        graph.initializer.append(numpy_helper.from_array(np.array(1, np.int64), "shift"))
        for node in graph.node:
            node.input[:] = ["moved" if n == "visual_index" else n for n in node.input]
        graph.node.insert(0, onnx.helper.make_node("Sub", ["visual_index", "shift"], ["moved"]))

    edit_graph(folder, edit)


def plan_of_other_layers(folder: Path) -> None:
    document = json.loads((folder / "plan.json").read_text())
    document["layers"] = {"0": "proxy", "2": "proxy", "3": "frozen"}
    (folder / "plan.json").write_text(json.dumps(document))


def plan_and_manifest_of_other_layers(folder: Path) -> None:
    plan_of_other_layers(folder)
    layers = {"0": "proxy", "2": "proxy", "3": "frozen"}
    change_manifest(folder, lambda document: document.update(layers=layers))


def graph_of_other_layers(folder: Path) -> None:
    """A graph rewritten for layers one too high: only the goldens know."""
    plan = Plan.load(folder / "plan.json")
    other = Plan(plan.model, {2: "proxy", 3: "proxy"}, proxies=plan.proxies, folder=folder)
    (folder / DECODER).unlink()
    rewrite_decoder(
        folder / "decoder.dense.onnx", other, ProxySet.for_plan(other), folder / DECODER
    )


def weights_of_two_layers_swapped(folder: Path) -> None:
    def edit(graph: Any) -> None:
        pair = [
            next(t for t in graph.initializer if t.name == f"layers.{i}.self_attn.q_proj.weight")
            for i in (1, 2)
        ]
        first, second = [list(t.external_data) for t in pair]
        for tensor, entries in zip(pair, (second, first), strict=True):
            del tensor.external_data[:]
            tensor.external_data.extend(entries)

    edit_graph(folder, edit)


def layer_reads_anothers_weights(folder: Path) -> None:
    def edit(graph: Any) -> None:
        names = {
            f"layers.{a}.mlp.up_proj.weight": f"layers.{3 - a}.mlp.up_proj.weight" for a in (1, 2)
        }
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]

    edit_graph(folder, edit)


def weight_bytes(folder: Path) -> None:
    """The sign of some values of one matrix."""
    content = bytearray((folder / WEIGHTS).read_bytes())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    begin, _ = header["layers.1.mlp.down_proj.weight"]["data_offsets"]
    for at in range(8 + length + begin + 3, 8 + length + begin + 403, 4):
        content[at] ^= 0x80
    (folder / WEIGHTS).write_bytes(content)


def vision_weight_bytes(folder: Path) -> None:
    """The sign of some values at the end of the vision part's weights."""
    content = bytearray((folder / "vision.weights.safetensors").read_bytes())
    for at in range(len(content) - 401, len(content), 4):
        content[at] ^= 0x80
    (folder / "vision.weights.safetensors").write_bytes(content)


def not_finite_weight(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    begin, _ = header["norm.weight"]["data_offsets"]
    content[8 + length + begin : 8 + length + begin + 4] = np.float32(np.nan).tobytes()
    (folder / WEIGHTS).write_bytes(content)


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "proxies file, a key": (proxies_file, "proxies"),
    "proxies file, an output": (proxies_of_another_plan, "proxies"),
    "constant in the graph": (constant_in_graph, "proxies"),
    "residual in the graph": (residual_in_graph, "proxies"),
    "streams swapped": (swapped_streams, "goldens"),
    "visual rows shifted": (visual_rows_shifted, "goldens decoder.onnx prefill"),
    "plan of other layers": (plan_of_other_layers, "plan"),
    "plan and manifest of other layers": (plan_and_manifest_of_other_layers, "proxies"),
    "graph of other layers": (graph_of_other_layers, "goldens decoder.onnx prefill"),
    "weights of two layers swapped": (weights_of_two_layers_swapped, "weights decoder.onnx"),
    "a layer reads another's weights": (layer_reads_anothers_weights, "weights decoder.onnx"),
    "weight bytes": (weight_bytes, "goldens decoder.onnx prefill"),
    "weight bytes of the vision part": (vision_weight_bytes, "goldens vision.onnx vision"),
    "a weight that is not finite": (not_finite_weight, "goldens decoder.onnx decode"),
}


@pytest.mark.usefixtures("without_sessions")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_even_where_the_manifest_was_signed_again(
    folder: Path, fault: str
) -> None:
    plant, caught_by = FAULTS[fault]
    plant(folder)
    sign(folder)
    report = validate_bundle(folder)
    assert not report.passed
    assert caught_by in failed(report)


@pytest.mark.usefixtures("without_sessions")
@pytest.mark.parametrize(
    "fault", ["constant in the graph", "weights of two layers swapped", "streams swapped"]
)
def test_the_answers_alone_would_have_told(folder: Path, fault: str) -> None:
    """The structural checks are not what the goldens hide behind."""
    FAULTS[fault][0](folder)
    sign(folder)
    assert any(name.startswith("goldens") for name in failed(validate_bundle(folder)))


def test_a_flipped_byte_fails_by_its_checksum_alone(folder: Path) -> None:
    path = folder / "README.md"
    path.write_bytes(path.read_bytes().replace(b"#", b"*", 1))
    assert failed(validate_bundle(folder)) == ["content"]


def test_a_fault_in_the_dense_decoder_fails_it_alone(folder: Path) -> None:
    def edit(graph: Any) -> None:
        node = next(n for n in graph.node if n.op_type == "Sigmoid")
        node.op_type = "Tanh"

    edit_graph(folder, edit, "decoder.dense.onnx")
    sign(folder)
    assert set(failed(validate_bundle(folder))) == {
        "goldens decoder.dense.onnx prefill",
        "goldens decoder.dense.onnx decode",
    }


def test_a_binding_the_manifest_lists_otherwise_fails(folder: Path) -> None:
    def rename(document: dict[str, Any]) -> None:
        document["graphs"][DECODER]["inputs"][0]["dtype"] = "float16"

    change_manifest(folder, rename)
    assert failed(validate_bundle(folder)) == ["bindings decoder.onnx"]


def test_a_missing_file_is_a_failed_check_and_nothing_else_is_tried(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    assert failed(validate_bundle(folder)) == ["files"]


def test_goldens_that_are_no_goldens_fail(folder: Path) -> None:
    (folder / "golden" / "decode.outputs.json").write_text('{"lst": []}')
    sign(folder)
    assert "goldens" in failed(validate_bundle(folder))


def test_a_missing_package_is_a_skipped_check_and_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device, where NumPy and ONNX Runtime are all there is."""
    for name in ("onnx", "safetensors", "jsonschema"):
        monkeypatch.setitem(sys.modules, name, None)
    report = validate_bundle(folder)
    assert report.passed
    skipped = {check.name: check.detail for check in report.checks if check.skipped}
    assert "onnx is not installed here" in skipped["graphs are valid"]
    assert any(check.name.startswith("goldens") for check in report.checks)


def test_what_is_no_bundle_raises(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is no bundle"):
        validate_bundle(tmp_path)
