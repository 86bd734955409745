"""Graphs in fp16 and bf16: as near to float32 as PyTorch is in the same type, and typed throughout.

fp16 runs on ONNX Runtime; no runtime for a CPU has kernels for bf16, so that onnx's own reference
evaluator runs it. TensorRT-RTX, where it is installed, builds both without a GPU.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hook_oracle import Chunk, hooked_logits
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from random_models import RANDOM_MODELS, random_proxies
from rewritten_decoders import LAYERS, PLANS, Exported, chunk, plan, relative_error, run

from p2p_export.graphs import export_decoder, rewrite_decoder
from p2p_export.models import family_of

LOWERINGS = ("literal", "fused", "elided")
NUMPY = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
TORCH = {"fp16": torch.float16, "bf16": torch.bfloat16}
ONNX = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
# What loses too much in half precision (DESIGN §5): norms, RoPE, softmax.
WIDE_OPERATORS = {"Pow", "ReduceMean", "Sqrt", "Cos", "Sin", "Softmax", "ReduceSum"}


class Reference:
    """onnx's evaluator in the place of an ONNX Runtime session."""

    def __init__(self, path: Path) -> None:
        self._evaluator = ReferenceEvaluator(onnx.load(path))

    def get_inputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in self._evaluator.input_names]

    def run(self, _outputs: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return self._evaluator.run(None, feeds)


@dataclass(frozen=True)
class Narrow:
    """One family's random model, exported in a precision."""

    exported: Exported
    precision: str
    folder: Path

    def graph(self, name: str, lowering: Any) -> Path:
        path = self.folder / f"{lowering}-{name}.onnx"
        dense = self.folder / "decoder.dense.onnx"
        if not path.exists():
            proxies = self.exported.proxies
            rewrite_decoder(dense, plan(PLANS[name]), proxies, path, lowering=lowering)
        return path

    def session(self, name: str, lowering: Any) -> Any:
        path = self.graph(name, lowering)
        if self.precision == "bf16":
            return Reference(path)
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def errors(self, runner: Any, modes: dict[int, str]) -> list[float]:
        """Distance of the graph's logits to PyTorch's in float32, a number a prompt."""
        found, exported, dtype = [], self.exported, NUMPY[self.precision]
        for wide in prompts(exported):
            narrow = [replace(one, inputs_embeds=one.inputs_embeds.astype(dtype)) for one in wide]
            expected, _ = hooked_logits(exported.model, modes, exported.proxies.tensors, wide)
            actual, _ = run(runner, exported.spec, narrow)
            found.append(relative_error(actual, expected))
        return found

    def pytorch_errors(self, modes: dict[int, str]) -> list[float]:
        exported, proxies = self.exported, self.exported.proxies.tensors
        narrow = copy.deepcopy(exported.model).to(TORCH[self.precision])
        return [
            relative_error(
                hooked_logits(narrow, modes, proxies, wide)[0],
                hooked_logits(exported.model, modes, proxies, wide)[0],
            )
            for wide in prompts(exported)
        ]


# An export takes seconds: one family each by default.
DEFAULT = (("qwen2_5_vl", "fp16"), ("llava_next", "bf16"))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (family, precision), marks=() if (family, precision) in DEFAULT else pytest.mark.slow
        )
        for family in RANDOM_MODELS
        for precision in NUMPY
    ],
    ids=" ".join,
)
def narrow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Narrow:
    name, precision = request.param
    model = RANDOM_MODELS[name](LAYERS)
    family = family_of(model.config)
    spec = family.decoder_spec(model.config)
    folder = tmp_path_factory.mktemp(precision)
    export_decoder(model, family, spec, folder, precision=precision)
    return Narrow(Exported(model, spec, random_proxies(spec), folder), precision, folder)


def prompts(exported: Exported) -> list[list[Chunk]]:
    """Four of them: a prefill, padded in one row, and a decoded token."""
    return [
        [
            chunk(exported.spec, ["ttvvvvvttt", "..ttvvvvtt"], seed=seed),
            chunk(exported.spec, ["t", "t"], seed=90 + seed),
        ]
        for seed in range(4)
    ]


@pytest.mark.parametrize("name", ["none", "suffix", "frozen amid proxy"])
def test_a_graph_is_as_near_to_float32_as_pytorch_in_its_precision(
    narrow: Narrow, name: str
) -> None:
    """Within twice PyTorch's own distance, on a CPU."""
    bound = 2 * max(narrow.pytorch_errors(PLANS[name]))
    for lowering in LOWERINGS:
        found = max(narrow.errors(narrow.session(name, lowering), PLANS[name]))
        print(f"{name} {narrow.precision} {lowering}: {found:.2e} of {bound:.2e}")
        assert found < bound, lowering


def test_another_plan_is_farther_than_rounding(narrow: Narrow) -> None:
    bound = 2 * max(narrow.pytorch_errors(PLANS["suffix"]))
    runner = narrow.session("frozen amid proxy", "elided")
    assert min(narrow.errors(runner, PLANS["suffix"])) > 5 * bound


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_norms_rope_and_softmax_run_in_float32_and_products_do_not(
    narrow: Narrow, lowering: str
) -> None:
    path = narrow.graph("frozen amid proxy", lowering)
    onnx.checker.check_model(str(path), full_check=True)  # operators take one type each
    model = onnx.shape_inference.infer_shapes(
        onnx.load(path, load_external_data=False), strict_mode=True
    )
    values = [*model.graph.value_info, *model.graph.input, *model.graph.output]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    seen = set()
    for node in model.graph.node:
        if node.op_type in WIDE_OPERATORS:
            seen.add(node.op_type)
            assert types[node.input[0]] == TensorProto.FLOAT, node.name
        if node.op_type == "MatMul":
            assert {types[name] for name in node.input} == {ONNX[narrow.precision]}, node.name
    assert seen >= {"Pow", "ReduceMean", "Cos", "Sin", "Softmax"}
    caches = {types[value.name] for value in model.graph.output[1:]}
    assert caches == {ONNX[narrow.precision]}
    assert types["logits"] == TensorProto.FLOAT
