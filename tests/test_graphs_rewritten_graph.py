"""What the rewritten graph holds, what it refuses, and that a fault in it is noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hook_oracle import hooked_logits
from rewritten_decoders import LAYERS, PLANS, TOLERANCE, Exported, chunk, plan, relative_error, run

from p2p_export import ProxySet
from p2p_export.errors import PlanError, RewriteError
from p2p_export.graphs import rewrite_decoder


def test_optimizations_off_and_on_agree(exported: Exported, lowering: str) -> None:
    modes = PLANS["frozen amid proxy"]
    for rows in (["ttvvvt"], ["ttvvvt", "..tvvt"]):
        prompt = [chunk(exported.spec, rows)]
        off = exported.session(
            modes,
            lowering,
            graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
        )
        without, _ = run(off, exported.spec, prompt)
        optimized, _ = run(exported.session(modes, lowering), exported.spec, prompt)
        assert relative_error(optimized, without) < TOLERANCE


def test_no_planned_layer_gives_the_dense_graph_node_for_node(
    exported: Exported, lowering: str
) -> None:
    path = exported.graph({}, lowering)
    dense = onnx.load(exported.folder / "decoder.dense.onnx", load_external_data=False)
    same = onnx.load(path, load_external_data=False)
    assert same == dense


def test_the_rewrite_points_at_the_same_weights_and_adds_only_proxy_constants(
    exported: Exported, lowering: str
) -> None:
    path = exported.graph(PLANS["middle"], lowering)
    dense = onnx.load(exported.folder / "decoder.dense.onnx", load_external_data=False)
    pruned = onnx.load(path, load_external_data=False)
    onnx.checker.check_model(str(path))
    before = {tensor.name: tensor for tensor in dense.graph.initializer}
    for tensor in pruned.graph.initializer:
        if tensor.name.startswith("proxy."):
            assert not tensor.external_data
        else:
            assert tensor == before[tensor.name]
    assert len(list(exported.folder.glob("*.safetensors"))) == 1


@pytest.mark.parametrize("name", ["suffix", "all"])
def test_the_pruned_graph_multiplies_weights_with_text_rows_only(
    exported: Exported, name: str, lowering: str
) -> None:
    """Count rows that enter each MatMul with a weight, as ONNX Runtime runs it."""
    modes = PLANS[name]
    source = exported.graph(modes, lowering)
    rows = ["ttvvvvvvvvttt"]
    counted = rows_per_product(exported, source, rows)
    last = LAYERS - 1
    for layer in modes:
        wide = 5 if layer != last else 1
        assert counted[f"layers.{layer}.mlp.gate_proj"] == wide
        assert counted[f"layers.{layer}.self_attn.q_proj"] == wide
        assert counted[f"layers.{layer}.self_attn.k_proj"] == 5
    if name == "suffix":
        assert counted["layers.1.mlp.gate_proj"] == 13
        # The last reader: keys of all rows, the rest of text; the asked row is one of them.
        assert counted["layers.2.self_attn.k_proj"] == 13
        assert counted["layers.2.mlp.gate_proj"] == 5
        asked = rows_per_product(exported, source, ["ttvvvvvvvvv"])
        assert asked["layers.2.self_attn.k_proj"] == 11
        assert asked["layers.2.mlp.gate_proj"] == 3
    dense = rows_per_product(exported, exported.folder / "decoder.dense.onnx", rows)
    assert dense["layers.3.mlp.gate_proj"] == 13
    assert dense["layers.4.self_attn.k_proj"] == 13
    assert dense["layers.4.mlp.gate_proj"] == 1


def rows_per_product(exported: Exported, source: Path, rows: list[str]) -> dict[str, int]:
    model = onnx.load(source, load_external_data=False)
    products = [
        node for node in model.graph.node if node.op_type == "MatMul" and "_proj" in node.name
    ]
    outputs = list(model.graph.output)
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None)
        for node in products
    )
    counting = source.with_name(f"{source.stem}.counting.onnx")
    onnx.save(model, counting)
    session = onnxruntime.InferenceSession(counting, providers=["CPUExecutionProvider"])
    assert len(products) >= 7 * LAYERS
    _, host = run(session, exported.spec, [chunk(exported.spec, rows)])
    results = host.cache[len(outputs) - 1 :]
    counted: dict[str, int] = {}
    for node, result in zip(products, results, strict=True):
        scope = node.name.rpartition("/")[0]
        counted[scope] = counted.get(scope, 0) + result.shape[1]
    return counted


class TestPlantedFaults:
    """What the comparison with the hooks must notice."""

    @pytest.fixture(autouse=True)
    def choose_lowering(self, lowering: Any) -> None:
        self.lowering = lowering

    def error(self, exported: Exported, proxies: ProxySet, modes: dict[int, str]) -> float:
        prompt = [chunk(exported.spec, ["ttvvvvtt"])]
        path = exported.folder / "faulty.onnx"
        path.unlink(missing_ok=True)
        dense = exported.folder / "decoder.dense.onnx"
        rewrite_decoder(dense, plan(modes), proxies, path, lowering=self.lowering)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        actual, _ = run(session, exported.spec, prompt)
        expected, _ = hooked_logits(
            exported.model, PLANS["middle"], exported.proxies.tensors, prompt
        )
        return relative_error(actual, expected)

    def test_without_a_fault_they_agree(self, exported: Exported) -> None:
        assert self.error(exported, exported.proxies, PLANS["middle"]) < TOLERANCE

    def test_two_layers_swapped(self, exported: Exported) -> None:
        swap = {"1": "2", "2": "1"}
        swapped = {}
        for name, vector in exported.proxies.tensors.items():
            parts = name.split(".")
            parts[1] = swap.get(parts[1], parts[1])
            swapped[".".join(parts)] = vector
        assert self.error(exported, ProxySet(swapped), PLANS["middle"]) > 100 * TOLERANCE

    @pytest.mark.parametrize("site", ["k", "v", "o", "down"])
    def test_one_proxy_zeroed(self, exported: Exported, site: str) -> None:
        tensors = dict(exported.proxies.tensors)
        name = f"layers.1.{site}.image"
        tensors[name] = np.zeros_like(tensors[name])
        assert self.error(exported, ProxySet(tensors), PLANS["middle"]) > 10 * TOLERANCE

    def test_another_layer_planned(self, exported: Exported) -> None:
        modes = {1: "proxy", 3: "proxy"}
        assert self.error(exported, exported.proxies, modes) > 100 * TOLERANCE

    def test_the_other_mode(self, exported: Exported) -> None:
        modes = {1: "proxy", 2: "frozen"}
        assert self.error(exported, exported.proxies, modes) > 100 * TOLERANCE


class TestRefusals:
    def test_a_missing_proxy_is_named(self, exported: Exported, tmp_path: Path) -> None:
        tensors = {k: v for k, v in exported.proxies.tensors.items() if k != "layers.1.k.image"}
        with pytest.raises(PlanError, match=r"no layers\.1\.k\.image"):
            rewrite_decoder(
                exported.folder / "decoder.dense.onnx",
                plan({1: "proxy"}),
                ProxySet(tensors),
                tmp_path / "out.onnx",
            )
        assert list(tmp_path.iterdir()) == []

    def test_a_proxy_of_another_width_is_named(self, exported: Exported, tmp_path: Path) -> None:
        tensors = {**exported.proxies.tensors, "layers.1.o.image": np.zeros(5, np.float32)}
        with pytest.raises(PlanError, match=r"layers\.1\.o\.image has shape \[5\]"):
            rewrite_decoder(
                exported.folder / "decoder.dense.onnx",
                plan({1: "proxy"}),
                ProxySet(tensors),
                tmp_path / "out.onnx",
            )

    def test_a_layer_the_graph_lacks_is_named(self, exported: Exported, tmp_path: Path) -> None:
        with pytest.raises(PlanError, match="layer 7"):
            rewrite_decoder(
                exported.folder / "decoder.dense.onnx",
                plan({7: "proxy"}),
                exported.proxies,
                tmp_path / "out.onnx",
            )

    def test_a_graph_already_rewritten_is_refused(
        self, exported: Exported, tmp_path: Path, lowering: str
    ) -> None:
        rewritten = exported.graph(PLANS["middle"], lowering)
        with pytest.raises(RewriteError, match="rewritten before"):
            rewrite_decoder(
                rewritten,
                plan({1: "proxy"}),
                exported.proxies,
                tmp_path / "out.onnx",
            )


def test_rewriting_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from p2p_export.graphs import rewrite_decoder; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
