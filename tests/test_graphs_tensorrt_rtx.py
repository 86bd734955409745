"""TensorRT-RTX's parser and builder take the graphs, where it is installed; it needs no GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from random_models import RANDOM_MODELS, random_proxies
from rewritten_decoders import LAYERS, PLANS, plan

from p2p_export import ProxySet
from p2p_export.graphs import export_decoder, rewrite_decoder
from p2p_export.models import family_of

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None,
    reason="TensorRT-RTX is not installed, so no graph was built with it (extra trt-rtx)",
)
BUILDER = Path(__file__).with_name("tensorrt_rtx_build.py")
DEFAULT = ("llava_next", "bf16")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (family, precision), marks=() if (family, precision) == DEFAULT else pytest.mark.slow
        )
        for family in RANDOM_MODELS
        for precision in ("fp32", "fp16", "bf16")
    ],
    ids=" ".join,
)
def dense(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ProxySet]:
    family_name, precision = request.param
    model = RANDOM_MODELS[family_name](LAYERS)
    family = family_of(model.config)
    spec = family.decoder_spec(model.config)
    folder = tmp_path_factory.mktemp(precision)
    path = export_decoder(model, family, spec, folder, precision=precision)
    return path, random_proxies(spec)


def build(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BUILDER), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_dense_graph_is_built(dense: tuple[Path, ProxySet]) -> None:
    built = build(dense[0])
    assert built.returncode == 0, built.stderr


@pytest.mark.parametrize("layout", ["index", "span"])
@pytest.mark.parametrize("lowering", ["literal", "fused", "elided"])
def test_pruned_graphs_are_built(dense: tuple[Path, ProxySet], lowering: Any, layout: Any) -> None:
    path, proxies = dense
    pruned = path.with_name(f"{lowering}-{layout}.onnx")
    modes = plan(PLANS["frozen amid proxy"])
    rewrite_decoder(path, modes, proxies, pruned, lowering=lowering, layout=layout)
    built = build(pruned)
    assert built.returncode == 0, built.stderr


def test_a_graph_of_two_types_in_one_addition_is_not_built(dense: tuple[Path, ProxySet]) -> None:
    """onnx's checker lets it pass without inference; the builder must not."""
    path = dense[0]
    model = onnx.load(path, load_external_data=False)
    residual = next(n for n in model.graph.node if n.name.startswith("layers.0/Add"))
    cosine = next(n for n in model.graph.node if n.op_type == "Cos")
    table = "wrong type"
    kind = onnx.TensorProto.INT32
    model.graph.node.insert(
        list(model.graph.node).index(residual),
        onnx.helper.make_node("Cast", [cosine.input[0]], [table], to=kind),
    )
    residual.input[1] = table
    faulty = path.with_name("faulty.onnx")
    onnx.save(model, faulty)
    assert build(faulty).returncode == 1
