"""Plan -> bundle: what belongs together is exported, and nothing else leaves a trace."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_bundles import LAYERS, MODES, bundle, checkpoint, plan_for
from safetensors.numpy import load_file

from p2p_export import Plan, export, graphs
from p2p_export.bundle import Bundle
from p2p_export.engines import open_bundle
from p2p_export.engines.check import Check
from p2p_export.engines.validation import ValidationReport, validate_bundle
from p2p_export.errors import CheckFailedError, InputError, PlanError
from p2p_export.export import export_bundle
from p2p_export.manifest import Limits
from p2p_export.models import FAMILIES
from p2p_export.models.checkpoint import find_checkpoint
from p2p_export.models.llava import LLAVA
from p2p_export.plan import PlanModel, PlanProxies


class Said:
    """Progress that keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def track(self, items: Iterable[Any], *, description: str, total: int) -> Iterator[Any]:
        yield from items

    def say(self, line: str) -> None:
        self.lines.append(line)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_bundle_holds_what_a_device_needs() -> None:
    manifest = Bundle.open(bundle("llava"), verify="sha256").manifest
    assert manifest.layers == MODES
    assert (manifest.target, manifest.precision, manifest.lowering) == ("ort", "fp32", "elided")
    assert manifest.model.architecture == "llava"
    assert manifest.model.fingerprint == find_checkpoint(str(checkpoint("llava"))).fingerprint
    assert manifest.tokens.image == (3,)
    assert (manifest.tokens.bos, manifest.tokens.eos) == ((1,), (2,))
    assert manifest.limits == Limits()
    assert manifest.vision is not None
    assert manifest.golden.source == "processor"
    assert manifest.flops is not None
    assert 0 < manifest.flops["needed"]["ratio"] < 1
    expected = {
        "decoder.onnx", "decoder.dense.onnx", "decoder.weights.safetensors", "vision.onnx",
        "embedding.safetensors", "plan.json", "proxies.safetensors", "README.md",
        "processor/tokenizer.json", "golden/prefill.inputs.json",
        "golden/dense.decode.outputs.json",
    }  # fmt: skip
    assert expected <= set(manifest.files)


def test_the_bundles_plan_says_its_model_and_reads_its_own_proxies() -> None:
    folder = bundle("llava")
    plan = Plan.load(folder / "plan.json")
    assert plan.layers == MODES
    assert (plan.model.architecture, plan.model.num_hidden_layers) == ("llava", LAYERS)
    assert plan.proxies is not None
    assert plan.proxies.file == "proxies.safetensors"
    assert set(load_file(folder / "proxies.safetensors"))


def test_mrope_models_say_how_they_count_positions() -> None:
    manifest = Bundle.open(bundle("qwen2_5_vl")).manifest
    assert (manifest.positions.scheme, manifest.positions.spatial_merge_size) == ("mrope", 2)
    assert (manifest.tokens.image, manifest.tokens.video) == ((3,), (4,))
    assert (manifest.vision, manifest.vision_missing) == (None, "left out with --only decoder")
    assert "embedding.safetensors" not in manifest.files


def test_a_half_precision_bundle_validates(tmp_path: Path) -> None:
    manifest = export_bundle(
        plan_for("qwen2_5_vl", 2), tmp_path / "b", precision="fp16", only="decoder"
    )
    binding = manifest.graphs["decoder.onnx"].input("inputs_embeds")
    assert binding is not None
    assert binding.dtype == "float16"
    assert manifest.golden.rtol == pytest.approx(8 * 2**-10)
    report = validate_bundle(tmp_path / "b")
    assert report.passed
    _, state = open_bundle(tmp_path / "b").prefill(
        np.ones((1, 3, 48), np.float32), np.zeros((3, 1, 3), np.int64), np.zeros((1, 3), np.bool_)
    )
    assert state.nbytes == 3 * 2 * 2 * 2 * 12 * 2


@pytest.fixture
def copied_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of the LLaVA decoder take it from a bundle that has it: the export takes its time."""
    source = bundle("llava")

    def copy(_model: Any, _family: Any, _spec: Any, folder: Path, **_options: Any) -> Path:
        for name in ("decoder.dense.onnx", "decoder.weights.safetensors"):
            shutil.copy(source / name, folder)
        return folder / "decoder.dense.onnx"

    monkeypatch.setattr(graphs, "export_decoder", copy)


@pytest.mark.usefixtures("copied_export")
def test_a_family_without_vision_export_and_processor_exports_its_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, "llava", replace(LLAVA, vision=None))  # type: ignore[arg-type]
    bare = tmp_path / "checkpoint"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(checkpoint("llava") / name, bare)
    said = Said()
    plan = replace(plan_for("llava"), certificate=None)
    manifest = export_bundle(
        plan,
        tmp_path / "b",
        model=str(bare),
        dense=False,
        max_batch=1,
        max_context=40,
        progress=said,
    )
    assert manifest.vision is None
    assert "cannot be exported yet" in (manifest.vision_missing or "")
    assert any("cannot be exported yet" in line for line in said.lines)
    assert any(line.startswith("warning: the plan has no certificate") for line in said.lines)
    assert manifest.golden.source == "random"
    assert "embedding.safetensors" in manifest.files
    assert "decoder.dense.onnx" not in manifest.files
    assert not any(name.startswith("vision") for name in manifest.files)
    assert validate_bundle(tmp_path / "b").passed
    with pytest.raises(InputError, match="2 batch rows"):
        open_bundle(tmp_path / "b").prefill(
            np.ones((2, 1, 48), np.float32), np.zeros((2, 1), np.int64), np.zeros((2, 1), np.bool_)
        )


@pytest.mark.usefixtures("copied_export")
def test_a_bundle_that_fails_its_validation_never_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = ValidationReport("b", (Check("goldens", False, "logits off by 3"),))
    monkeypatch.setattr(export, "validate_bundle", lambda folder: report)
    with pytest.raises(CheckFailedError, match="goldens: logits off by 3") as error:
        export_bundle(plan_for("llava"), tmp_path / "b", only="decoder", dense=False)
    assert error.value.exit_code == 1
    assert names(tmp_path) == []


OTHER_PLANS: dict[str, dict[int, Any]] = {
    "no layer": {},
    "every layer": dict.fromkeys(range(LAYERS), "proxy"),
    "the last ones": {2: "proxy", 3: "proxy"},
    "the first ones, frozen": {0: "frozen", 1: "frozen"},
}


@pytest.mark.usefixtures("copied_export")
@pytest.mark.parametrize("name", OTHER_PLANS)
def test_bundles_of_other_plans_validate(tmp_path: Path, name: str) -> None:
    plan = replace(plan_for("llava"), layers=OTHER_PLANS[name])
    if not plan.planned:
        plan = replace(plan, proxies=None)
    manifest = export_bundle(plan, tmp_path / "b", only="decoder", dense=False)
    assert manifest.layers == OTHER_PLANS[name]
    assert ("proxies.safetensors" in manifest.files) == bool(plan.planned)
    assert ("text_index" in {b.name for b in manifest.graphs["decoder.onnx"].inputs}) == bool(
        plan.planned
    )


@pytest.mark.usefixtures("copied_export")
@pytest.mark.parametrize(
    ("lowering", "layout"), [("literal", "index"), ("fused", "span"), ("elided", "span")]
)
def test_bundles_of_other_lowerings_and_layouts_validate(
    tmp_path: Path, lowering: str, layout: str
) -> None:
    manifest = export_bundle(
        plan_for("llava"), tmp_path / "b", lowering=lowering, layout=layout, only="decoder"
    )
    names = {binding.name for binding in manifest.graphs["decoder.onnx"].inputs}
    assert ("visual_start" in names) == (layout == "span")
    assert ("visual_sequence_index" in names) == (lowering == "elided")
    two_images = np.array([[False, True, False, True, False]])
    embeds = np.ones((1, 5, manifest.decoder.hidden_size), np.float32)
    refused = pytest.raises(InputError, match="--layout index")
    with refused if layout == "span" else nullcontext():
        open_bundle(tmp_path / "b").prefill(embeds, np.arange(5)[None], two_images)


def test_layout_span_is_refused_where_newline_rows_count_as_text(tmp_path: Path) -> None:
    plan = replace(plan_for("llava"), newline="text")
    with pytest.raises(PlanError, match="--layout index"):
        export_bundle(plan, tmp_path / "b", layout="span")


def with_model(plan: Plan, **changed: Any) -> Plan:
    return replace(plan, model=replace(plan.model, **changed))


def wide_proxies(folder: Path) -> Plan:
    from safetensors.numpy import save_file

    plan = plan_for("llava")
    assert plan.proxies_path is not None
    tensors = load_file(plan.proxies_path)
    tensors["layers.1.k.image"] = np.zeros(7, np.float32)
    save_file(tensors, folder / "wide.safetensors")
    return replace(plan, proxies=PlanProxies("wide.safetensors"), folder=folder)


REFUSED: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "another fingerprint": (
        lambda _: with_model(plan_for("llava"), fingerprint="0" * 64), {}, PlanError, "fingerprint",
    ),
    "another architecture": (
        lambda _: with_model(plan_for("llava"), architecture="mistral"), {}, PlanError, "'llava'",
    ),
    "another number of layers": (
        lambda _: with_model(plan_for("llava"), num_hidden_layers=9), {}, PlanError, "9 layers",
    ),
    "a layer beyond the last": (
        lambda _: replace(plan_for("llava"), layers={LAYERS: "proxy"}), {}, PlanError, "layer 4",
    ),
    "proxies of another size": (wide_proxies, {}, PlanError, "layers.1.k.image"),
    "proxies that are not there": (
        lambda folder: replace(plan_for("llava"), folder=folder), {}, PlanError, "cannot be read",
    ),
    "no such model": (
        lambda _: with_model(plan_for("llava"), id="./nowhere"), {}, InputError, "nowhere",
    ),
    "a target to come": (
        lambda _: plan_for("llava"), {"target": "trt"}, InputError, "--target ort",
    ),
    "an unknown target": (
        lambda _: plan_for("llava"), {"target": "tpu"}, InputError, "we have ort",
    ),
    "an unknown precision": (
        lambda _: plan_for("llava"), {"precision": "int4"}, InputError, "fp32, fp16",
    ),
    "an unknown lowering": (
        lambda _: plan_for("llava"), {"lowering": "fussed"}, InputError, "fused",
    ),
    "a limit below one": (
        lambda _: plan_for("llava"), {"max_batch": 0}, InputError, "max_batch is 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_belong_together_is_refused_without_a_trace(
    tmp_path: Path, case: str
) -> None:
    make, options, kind, said = REFUSED[case]
    (tmp_path / "plan").mkdir()
    plan = make(tmp_path / "plan")
    with pytest.raises(kind) as error:
        export_bundle(plan, tmp_path / "b", **options)
    assert said in str(error.value)
    assert names(tmp_path) == ["plan"]


def test_an_output_in_use_is_refused_before_the_model_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes").touch()
    with pytest.raises(InputError, match="in use"):
        export_bundle(Plan(PlanModel("no-such-model")), tmp_path / "b")


def test_a_named_model_replaces_the_plans_own_if_its_weights_are_the_same(tmp_path: Path) -> None:
    fingerprint = find_checkpoint(str(checkpoint("llava"))).fingerprint
    moved = shutil.copytree(checkpoint("llava"), tmp_path / "moved")
    plan = with_model(plan_for("llava"), id="somewhere/else", fingerprint=fingerprint)
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**config, "image_seq_length": 15}))
    with pytest.raises(PlanError, match="other weights"):
        export_bundle(plan, tmp_path / "b", model=str(moved))
