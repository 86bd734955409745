"""ONNX Runtime's own operators take the place of what they compute, and of nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from rewritten_decoders import LAYERS, PLANS, TOLERANCE, Exported, chunk, plan, relative_error, run

from p2p_export.graphs import rewrite_decoder
from p2p_export.graphs.onnxruntime_operators import Fused, use_onnxruntime_operators


def fused(exported: Exported, folder: Path, name: str, lowering: str) -> Path:
    path = folder / "fused.onnx"
    shutil.copyfile(exported.graph(PLANS[name], lowering), path)
    for weights in exported.folder.glob("*.safetensors"):
        shutil.copyfile(weights, folder / weights.name)
    fused = use_onnxruntime_operators(path)
    elided = sum(mode == "proxy" for mode in PLANS[name].values()) if lowering == "elided" else 0
    spec = exported.spec
    grouped = spec.num_attention_heads > spec.num_key_value_heads
    assert fused == Fused(2 * LAYERS, 0 if grouped else LAYERS - elided)
    return path


def session(path: Path, options: Any = None) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("lowering", ["literal", "fused", "elided"])
@pytest.mark.parametrize("name", ["none", "suffix", "frozen amid proxy"])
def test_both_forms_give_the_same_answers(
    exported: Exported, tmp_path: Path, name: str, lowering: str
) -> None:
    path = fused(exported, tmp_path, name, lowering)
    spec = exported.spec
    chunks = [
        chunk(spec, ["ttvv", ".tvv"], seed=1),
        chunk(spec, ["vvvt", "vvvv"], seed=2),
        chunk(spec, ["t", "t"], seed=3),
    ]
    expected, _ = run(exported.session(PLANS[name], lowering), spec, chunks)
    found, _ = run(session(path), spec, chunks)
    assert relative_error(found, expected) < TOLERANCE
    off = onnxruntime.SessionOptions()
    off.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found, _ = run(session(path, off), spec, chunks)
    assert relative_error(found, expected) < TOLERANCE
    operators = [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]
    assert operators.count("RotaryEmbedding") == 2 * LAYERS
    assert "Neg" not in operators or lowering == "elided"
    onnx.checker.check_model(str(path))


def test_a_fused_dense_decoder_can_still_be_rewritten(exported: Exported, tmp_path: Path) -> None:
    dense = fused(exported, tmp_path, "none", "elided")
    pruned = tmp_path / "pruned.onnx"
    rewrite_decoder(dense, plan(PLANS["isolated"]), exported.proxies, pruned)
    prompt = [chunk(exported.spec, ["ttvvvtt"])]
    expected, _ = run(exported.session(PLANS["isolated"], "elided"), exported.spec, prompt)
    found, _ = run(session(pruned), exported.spec, prompt)
    assert relative_error(found, expected) < TOLERANCE
    assert use_onnxruntime_operators(pruned).rotations == 4
    found, _ = run(session(pruned), exported.spec, prompt)
    assert relative_error(found, expected) < TOLERANCE


@pytest.mark.parametrize("other", ["halves in the other order", "unequal halves", "no table"])
def test_what_only_looks_like_a_rotation_is_left_alone(tmp_path: Path, other: str) -> None:
    path = tmp_path / "graph.onnx"
    onnx.save(almost_a_rotation(other), path)
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 8), dtype=np.float32)
    table = np.random.default_rng(1).standard_normal((1, 3, 8), dtype=np.float32)
    feeds = {"x": x, "cos": table, "sin": table}
    [before] = session(path).run(None, feeds)
    assert use_onnxruntime_operators(path) == Fused(0, 0)
    [after] = session(path).run(None, feeds)
    np.testing.assert_array_equal(before, after)


def almost_a_rotation(other: str) -> onnx.ModelProto:
    cut = 3 if other == "unequal halves" else 4
    first, second = ([0], [cut]), ([cut], [8])
    if other == "halves in the other order":
        first, second = second, first
    bounds = {"a0": first[0], "a1": first[1], "b0": second[0], "b1": second[1], "axis": [3]}
    nodes = [
        helper.make_node("Slice", ["x", "a0", "a1", "axis"], ["first"]),
        helper.make_node("Slice", ["x", "b0", "b1", "axis"], ["second"]),
        helper.make_node("Neg", ["second"], ["negated"]),
        helper.make_node("Concat", ["negated", "first"], ["turned"], axis=3),
        *(
            helper.make_node("Abs", [name], [f"{name}4"])
            if other == "no table"
            else helper.make_node("Unsqueeze", [name, "one"], [f"{name}4"])
            for name in ("cos", "sin")
        ),
        helper.make_node("Mul", ["x", "cos4"], ["straight"]),
        helper.make_node("Mul", ["turned", "sin4"], ["crossed"]),
        helper.make_node("Add", ["straight", "crossed"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "almost",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 2, "S", 8]),
            helper.make_tensor_value_info("cos", TensorProto.FLOAT, ["B", "S", 8]),
            helper.make_tensor_value_info("sin", TensorProto.FLOAT, ["B", "S", 8]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            helper.make_tensor(name, TensorProto.INT64, [1], values)
            for name, values in {**bounds, "one": [1]}.items()
        ],
    )
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


@pytest.mark.parametrize("what", ["mask first", "scale", "cache order"])
def test_attention_in_another_form_keeps_its_answers(
    exported: Exported, tmp_path: Path, what: str
) -> None:
    """Fused or left alone, the edited graph answers as before; two edits change what it answers."""
    path = tmp_path / "edited.onnx"
    model = onnx.load(exported.graph({}, "elided"), load_external_data=False)
    made = {output: node for node in model.graph.node for output in node.output}
    softmax = next(n for n in made.values() if n.name.startswith("layers.1.self_attn/Softmax"))
    masked = made[softmax.input[0]]
    if what == "mask first":
        masked.input[0], masked.input[1] = masked.input[1], masked.input[0]
    elif what == "scale":
        scaled = masked
        while scaled.op_type != "Mul":
            scaled = made[scaled.input[0]]
        scaled.input[1] = "another scale"
        value = np.array(0.7, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, "another scale"))
    else:
        joined = made["present.1.key"]
        joined.input[0], joined.input[1] = joined.input[1], joined.input[0]
    onnx.save(model, path)
    for weights in exported.folder.glob("*.safetensors"):
        shutil.copyfile(weights, tmp_path / weights.name)
    prompts = [chunk(exported.spec, ["ttvvvtt"]), chunk(exported.spec, ["t"], seed=4)]
    expected, _ = run(session(path), exported.spec, prompts)
    use_onnxruntime_operators(path)
    found, _ = run(session(path), exported.spec, prompts)
    assert relative_error(found, expected) < TOLERANCE
    usual, _ = run(exported.session({}, "elided"), exported.spec, prompts)
    assert (relative_error(usual, expected) > 100 * TOLERANCE) == (what != "mask first")
