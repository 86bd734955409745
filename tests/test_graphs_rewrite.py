"""The rewritten decoder computes what transformers computes with its sites overwritten by hooks."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hook_oracle import Chunk, hooked_logits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_models import RANDOM_MODELS, random_proxies

from p2p_export import Plan, ProxySet
from p2p_export.errors import PlanError, RewriteError
from p2p_export.graphs import export_decoder, rewrite_decoder
from p2p_export.models import DecoderSpec, family_of
from p2p_export.plan import PlanModel, PlanProxies

LAYERS = 5
# fp32 and the same sums in another order: measured at most 2e-6 over these models.
TOLERANCE = 1e-5

PLANS: dict[str, dict[int, str]] = {
    "none": {},
    "prefix": {0: "proxy", 1: "proxy"},
    "suffix": {3: "proxy", 4: "proxy"},
    "middle": {1: "proxy", 2: "proxy"},
    "all": dict.fromkeys(range(LAYERS), "proxy"),
    "isolated": {1: "proxy", 3: "proxy"},
    "last": {4: "proxy"},
    "first": {0: "proxy"},
    "all but last": dict.fromkeys(range(LAYERS - 1), "proxy"),
    "all but first": dict.fromkeys(range(1, LAYERS), "proxy"),
    "frozen": dict.fromkeys(range(LAYERS), "frozen"),
    "frozen prefix": {0: "frozen", 1: "frozen"},
    "frozen last": {4: "frozen"},
    "frozen amid proxy": {1: "proxy", 2: "frozen", 3: "proxy"},
    "frozen amid proxy to the end": {1: "proxy", 2: "frozen", 3: "proxy", 4: "proxy"},
    "proxy amid frozen": {0: "frozen", 1: "proxy", 2: "frozen", 4: "frozen"},
}


@dataclass(frozen=True)
class Exported:
    """One family's random model, exported once for all tests."""

    model: Any
    spec: DecoderSpec
    proxies: ProxySet
    folder: Path

    def session(self, modes: dict[int, str], **options: Any) -> Any:
        name = "-".join(f"{i}{m}" for i, m in sorted(modes.items())) or "none"
        path = self.folder / f"{name}.onnx"
        if not path.exists():
            rewrite_decoder(self.folder / "decoder.dense.onnx", plan(modes), self.proxies, path)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        for key, value in options.items():
            setattr(settings, key, value)
        return onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module", params=list(RANDOM_MODELS))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model = RANDOM_MODELS[request.param](LAYERS)
    family = family_of(model.config)
    spec = family.decoder_spec(model.config)
    folder = tmp_path_factory.mktemp(request.param)
    export_decoder(model, family, spec, folder)
    return Exported(model, spec, random_proxies(spec), folder)


def plan(modes: dict[int, str]) -> Plan:
    layers: dict[int, Any] = dict(modes)
    return Plan(PlanModel("random"), layers, proxies=PlanProxies("proxies.safetensors"))


def chunk(
    spec: DecoderSpec, visual: list[str], *, seed: int = 0, padding: tuple[int, ...] = ()
) -> Chunk:
    """One row a string: `v` visual, `t` text, `.` padding; random embeddings and positions."""
    random = np.random.default_rng(seed)
    rows = np.array([list(row) for row in visual])
    batch, length = rows.shape
    axes = (3,) if spec.position_axes == 3 else ()
    return Chunk(
        inputs_embeds=random.normal(size=(batch, length, spec.hidden_size)).astype(np.float32),
        position_ids=random.integers(0, 40, size=(*axes, batch, length)),
        visual=rows == "v",
        attention_mask=(rows != ".").astype(np.int64),
    )


def index(mask: np.ndarray) -> np.ndarray:
    """Row numbers of each batch row, -1 behind them, at least one column."""
    width = max(1, int(mask.sum(axis=1).max()))
    result = np.full((mask.shape[0], width), -1, dtype=np.int64)
    for row, marks in enumerate(mask):
        places = [column for column, mark in enumerate(marks) if mark]
        result[row, : len(places)] = places
    return result


def run(session: Any, spec: DecoderSpec, chunks: list[Chunk]) -> tuple[list[np.ndarray], Any]:
    batch = chunks[0].inputs_embeds.shape[0]
    wanted = {entry.name for entry in session.get_inputs()}
    floats = chunks[0].inputs_embeds.dtype
    empty = np.zeros((batch, spec.num_key_value_heads, 0, spec.head_dim), dtype=floats)
    cache = [empty] * (2 * spec.num_hidden_layers)
    mask = np.zeros((batch, 0), dtype=np.int64)
    logits = []
    for part in chunks:
        mask = np.concatenate([mask, part.attention_mask], axis=1)
        feeds = {
            "inputs_embeds": part.inputs_embeds,
            "attention_mask": mask,
            "position_ids": part.position_ids,
            "text_index": index(~part.visual & (part.attention_mask != 0)),
            "visual_index": index(part.visual),
        }
        for layer in range(spec.num_hidden_layers):
            feeds[f"past_key_values.{layer}.key"] = cache[2 * layer]
            feeds[f"past_key_values.{layer}.value"] = cache[2 * layer + 1]
        result = session.run(None, {key: value for key, value in feeds.items() if key in wanted})
        logits.append(result[0])
        cache = result[1:]
    return logits, cache


def relative_error(actual: list[np.ndarray], expected: list[np.ndarray]) -> float:
    return max(
        float(np.abs(a - e).max() / np.abs(e).max()) for a, e in zip(actual, expected, strict=True)
    )


def check(exported: Exported, modes: dict[int, str], chunks: list[Chunk]) -> None:
    actual, cache = run(exported.session(modes), exported.spec, chunks)
    expected, keys = hooked_logits(exported.model, modes, exported.proxies.tensors, chunks)
    assert relative_error(actual, expected) < TOLERANCE
    real = np.concatenate([part.attention_mask for part in chunks], axis=1) != 0
    for layer, key in enumerate(keys):
        difference = np.abs(cache[2 * layer] - key)[np.broadcast_to(real[:, None], key.shape[:3])]
        assert difference.max() < TOLERANCE * np.abs(key).max(), f"keys of layer {layer}"


@pytest.mark.parametrize("name", PLANS)
def test_every_shape_of_plan_equals_the_hooks_in_prefill_and_decode(
    exported: Exported, name: str
) -> None:
    steps = [chunk(exported.spec, ["t"], seed=9 + i) for i in range(3)]
    check(exported, PLANS[name], [chunk(exported.spec, ["ttvvvvvttt"]), *steps])


@pytest.mark.parametrize("name", [name for name in PLANS if name != "none"])
def test_patching_moves_the_logits(exported: Exported, name: str) -> None:
    prompt = [chunk(exported.spec, ["ttvvvvvttt"])]
    pruned, _ = run(exported.session(PLANS[name]), exported.spec, prompt)
    dense, _ = run(exported.session({}), exported.spec, prompt)
    moved = relative_error(pruned, dense)
    # Visual rows of the last layer alone are read by nobody but its keys and values.
    assert moved > 1e-3 or PLANS[name] == {4: "frozen"}


@pytest.mark.parametrize(
    "rows",
    [
        ["vvvvtttt"],
        ["ttttvvvv"],
        ["tttttttt"],
        ["vvvvvvvv"],
        ["v"],
        ["tvvvtvvt"],
        ["tvtvtvtv"],
        ["ttvvvttt", "...tvvvt"],
        ["vvvvvvtt", "..tttttt"],
        ["tvvvvvvv", "....tttv", "ttttttvt"],
    ],
    ids=lambda rows: "/".join(rows),
)
@pytest.mark.parametrize("name", ["suffix", "frozen amid proxy", "prefix", "isolated", "all"])
def test_every_place_of_the_image_equals_the_hooks(
    exported: Exported, rows: list[str], name: str
) -> None:
    step = chunk(exported.spec, ["t"] * len(rows), seed=5)
    check(exported, PLANS[name], [chunk(exported.spec, rows), step])


@pytest.mark.parametrize("name", PLANS)
def test_chunks_that_end_inside_the_image_and_later_turns_equal_the_hooks(
    exported: Exported, name: str
) -> None:
    spec = exported.spec
    chunks = [
        chunk(spec, ["ttvv", ".tvv"], seed=1),
        chunk(spec, ["vvvt", "vvvv"], seed=2),
        chunk(spec, ["t", "t"], seed=3),
        chunk(spec, ["t", "t"], seed=4),
        chunk(spec, ["tvvt", "vvtt"], seed=5),
        chunk(spec, ["t", "t"], seed=6),
    ]
    check(exported, PLANS[name], chunks)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_drawn_plans_masks_and_chunkings_equal_the_hooks(exported: Exported, data: Any) -> None:
    modes = data.draw(
        st.lists(
            st.sampled_from(["dense", "proxy", "frozen"]), min_size=LAYERS, max_size=LAYERS
        ).map(lambda drawn: {i: mode for i, mode in enumerate(drawn) if mode != "dense"}),
        label="modes",
    )
    batch = data.draw(st.integers(1, 3), label="batch")
    length = data.draw(st.integers(1, 9), label="length")
    rows = [
        data.draw(st.text("tv", min_size=length, max_size=length), label=f"row {i}")
        for i in range(batch)
    ]
    padding = [data.draw(st.integers(0, length - 1)) if i else 0 for i in range(batch)]
    rows = ["." * pad + row[pad:] for pad, row in zip(padding, rows, strict=True)]
    cut = data.draw(st.integers(1, length), label="cut")
    if any(set(row[:cut]) == {"."} for row in rows):
        cut = length
    pieces = [rows] if cut == length else [[r[:cut] for r in rows], [r[cut:] for r in rows]]
    chunks = [chunk(exported.spec, piece, seed=i) for i, piece in enumerate(pieces)]
    check(exported, modes, [*chunks, chunk(exported.spec, ["t"] * batch, seed=8)])


def test_optimizations_off_and_on_agree(exported: Exported) -> None:
    modes = PLANS["frozen amid proxy"]
    for rows in (["ttvvvt"], ["ttvvvt", "..tvvt"]):
        prompt = [chunk(exported.spec, rows)]
        off = exported.session(
            modes,
            graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
        )
        without, _ = run(off, exported.spec, prompt)
        optimized, _ = run(exported.session(modes), exported.spec, prompt)
        assert relative_error(optimized, without) < TOLERANCE


def test_no_planned_layer_gives_the_dense_graph_node_for_node(exported: Exported) -> None:
    exported.session({})
    dense = onnx.load(exported.folder / "decoder.dense.onnx", load_external_data=False)
    same = onnx.load(exported.folder / "none.onnx", load_external_data=False)
    assert same == dense


def test_the_rewrite_points_at_the_same_weights_and_adds_only_proxy_constants(
    exported: Exported,
) -> None:
    exported.session(PLANS["middle"])
    dense = onnx.load(exported.folder / "decoder.dense.onnx", load_external_data=False)
    pruned = onnx.load(exported.folder / "1proxy-2proxy.onnx", load_external_data=False)
    onnx.checker.check_model(str(exported.folder / "1proxy-2proxy.onnx"))
    before = {tensor.name: tensor for tensor in dense.graph.initializer}
    for tensor in pruned.graph.initializer:
        if tensor.name.startswith("proxy."):
            assert not tensor.external_data
        else:
            assert tensor == before[tensor.name]
    assert len(list(exported.folder.glob("*.safetensors"))) == 1


@pytest.mark.parametrize("name", ["suffix", "all"])
def test_the_pruned_graph_multiplies_weights_with_text_rows_only(
    exported: Exported, name: str, tmp_path: Path
) -> None:
    """Count rows that enter each MatMul with a weight, as ONNX Runtime runs it."""
    exported.session(PLANS[name])
    modes = PLANS[name]
    source = exported.folder / ("-".join(f"{i}{m}" for i, m in sorted(modes.items())) + ".onnx")
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
        # The last reader: keys of all rows, the rest of text and the asked row.
        assert counted["layers.2.self_attn.k_proj"] == 13
        assert counted["layers.2.mlp.gate_proj"] == 6
    dense = rows_per_product(exported, exported.folder / "decoder.dense.onnx", rows)
    assert dense["layers.3.mlp.gate_proj"] == 13
    assert dense["layers.4.self_attn.k_proj"] == 13
    assert dense["layers.4.mlp.gate_proj"] == 1


def rows_per_product(exported: Exported, source: Path, rows: list[str]) -> dict[str, int]:
    model = onnx.load(source, load_external_data=False)
    products = [
        node for node in model.graph.node if node.op_type == "MatMul" and "_proj" in node.name
    ]
    del model.graph.output[1:]
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None)
        for node in products
    )
    counting = source.with_name(f"{source.stem}.counting.onnx")
    onnx.save(model, counting)
    session = onnxruntime.InferenceSession(counting, providers=["CPUExecutionProvider"])
    part = chunk(exported.spec, rows)
    feeds = {
        "inputs_embeds": part.inputs_embeds,
        "attention_mask": part.attention_mask,
        "position_ids": part.position_ids,
        "text_index": index(~part.visual),
        "visual_index": index(part.visual),
    }
    empty = np.zeros((1, exported.spec.num_key_value_heads, 0, exported.spec.head_dim), np.float32)
    for layer in range(LAYERS):
        feeds[f"past_key_values.{layer}.key"] = empty
        feeds[f"past_key_values.{layer}.value"] = empty
    wanted = {entry.name for entry in session.get_inputs()}
    names = [node.output[0] for node in products]
    assert len(products) >= 7 * LAYERS
    results = session.run(names, {key: value for key, value in feeds.items() if key in wanted})
    counted: dict[str, int] = {}
    for node, result in zip(products, results, strict=True):
        scope = node.name.rpartition("/")[0]
        counted[scope] = counted.get(scope, 0) + result.shape[1]
    return counted


class TestPlantedFaults:
    """What the comparison with the hooks must notice."""

    def error(self, exported: Exported, proxies: ProxySet, modes: dict[int, str]) -> float:
        prompt = [chunk(exported.spec, ["ttvvvvtt"])]
        path = exported.folder / "faulty.onnx"
        path.unlink(missing_ok=True)
        rewrite_decoder(exported.folder / "decoder.dense.onnx", plan(modes), proxies, path)
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

    def test_a_graph_already_rewritten_is_refused(self, exported: Exported, tmp_path: Path) -> None:
        exported.session(PLANS["middle"])
        with pytest.raises(RewriteError, match="rewritten before"):
            rewrite_decoder(
                exported.folder / "1proxy-2proxy.onnx",
                replace(plan({1: "proxy"})),
                exported.proxies,
                tmp_path / "out.onnx",
            )


def test_rewriting_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from p2p_export.graphs import rewrite_decoder; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0


@pytest.mark.parametrize("name", ["none", "suffix", "frozen amid proxy"])
def test_fp16_is_as_near_as_pytorch_in_fp16(
    exported: Exported, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Within twice the distance between PyTorch's own fp16 and fp32 (both on a CPU)."""
    folder = exported.folder / "fp16"
    family = family_of(exported.model.config)
    if not folder.exists():
        folder.mkdir()
        export_decoder(exported.model, family, exported.spec, folder, precision="fp16")
    path = folder / f"{name}.onnx"
    modes, spec = PLANS[name], exported.spec
    rewrite_decoder(folder / "decoder.dense.onnx", plan(modes), exported.proxies, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    graph_errors, torch_errors = [], []
    half = copy.deepcopy(exported.model).half()
    vectors = {k: v.astype(np.float16) for k, v in exported.proxies.tensors.items()}
    for seed in range(4):
        wide = chunk(spec, ["ttvvvvvttt"], seed=seed)
        narrow = replace(wide, inputs_embeds=wide.inputs_embeds.astype(np.float16))
        expected, _ = hooked_logits(exported.model, modes, exported.proxies.tensors, [wide])
        rounded, _ = hooked_logits(half, modes, vectors, [narrow])
        actual, _ = run(session, spec, [narrow])
        torch_errors.append(relative_error(rounded, expected))
        graph_errors.append(relative_error(actual, expected))
    assert max(graph_errors) < 2 * max(torch_errors)
