"""plan.json: hand-written plans work, and each wrong field gets its own sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2p_export import Plan, ProxySet
from p2p_export.errors import PlanError
from p2p_export.models import DecoderSpec
from p2p_export.plan import PlanModel, PlanProxies, Region
from p2p_export.proxies import tensor_name

MINIMAL = {
    "format": "p2p-plan/1",
    "model": {"id": "tiny-llava"},
    "layers": {"7": "frozen", "8": "proxy", "9": "proxy", "11": "proxy"},
    "proxies": {"file": "proxies.safetensors"},
}
SPEC = DecoderSpec(12, 8, 16, 2, 1, 4, 10, 1e-5)


def write(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_the_minimal_plan_loads(tmp_path: Path) -> None:
    plan = Plan.load(write(tmp_path, MINIMAL))
    assert plan.planned == (7, 8, 9, 11)
    assert plan.mode(7) == "frozen"
    assert plan.mode(0) == "dense"
    assert plan.regions == (Region(7, 9), Region(11, 11))
    assert plan.proxies_path == tmp_path / "proxies.safetensors"
    assert plan.newline == "visual"
    assert plan.certificate is None


def test_a_plan_of_no_layers_needs_no_proxies(tmp_path: Path) -> None:
    plan = Plan.load(
        write(tmp_path, {"format": "p2p-plan/1", "model": {"id": "m"}, "layers": {"3": "dense"}})
    )
    assert plan.planned == ()
    assert ProxySet.for_plan(plan).tensors == {}


def test_a_saved_plan_reads_back_the_same(tmp_path: Path) -> None:
    plan = Plan(
        PlanModel("m", "llava", 12, "f" * 64),
        {3: "proxy", 4: "frozen"},
        newline="text",
        proxies=PlanProxies("p.safetensors", "a" * 64, "mean"),
        tolerance=0.03,
        planner="paper",
        evidence={"seed": 1},
    )
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").to_dict() == plan.to_dict()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "p2p-plan/9"}, r"`format` is 'p2p-plan/9' and this version reads"),
        ({"layers": {"7": "pruned"}}, r"`layers\.7`.*'pruned' is not one of"),
        ({"layers": {"seven": "proxy"}}, r"'seven' does not match"),
        ({"layers": {"-1": "proxy"}}, r"'-1' does not match"),
        ({"layers": {"07": "proxy"}}, r"'07' does not match"),
        ({"layers": [7]}, r"`layers`.*not of type 'object'"),
        ({"model": {}}, r"`model`.*'id' is a required property"),
        ({"model": {"id": 3}}, r"`model\.id`.*not of type 'string'"),
        ({"model": {"id": "m", "size": "3B"}}, r"`model`.*'size' was unexpected"),
        ({"model": {"id": "m", "num_hidden_layers": 4}}, r"lists layer 7 and .* 0 to 3"),
        ({"proxies": None}, r"`proxies\.file` is missing though layer 7 is planned"),
        ({"proxies": {"file": "p", "sha256": "xyz"}}, r"`proxies\.sha256`"),
        ({"proxies": {"file": "p", "kind": "median"}}, r"`proxies\.kind`.*'median'"),
        ({"tolerance": 1.0}, r"`tolerance`.*1\.0"),
        ({"tolerance": -0.1}, r"`tolerance`.*-0\.1"),
        ({"visual": {"newline": "maybe"}}, r"`visual\.newline`.*'maybe'"),
        ({"colour": "blue"}, r"'colour' was unexpected"),
    ],
)
def test_each_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence) as raised:
        Plan.load(write(tmp_path, {**MINIMAL, **change}))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("{", "is not JSON"), ("", "is not JSON"), ("[]", "is not of type 'object'")],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        Plan.load(write(tmp_path, text))


def test_a_missing_plan_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="p2p-export plan"):
        Plan.load(tmp_path / "none.json")


class TestProxies:
    def proxies(self) -> ProxySet:
        random = np.random.default_rng(0)
        return ProxySet(
            {
                tensor_name(layer, site): random.normal(size=SPEC.site_size(site)).astype("f4")
                for layer in (7, 8, 9, 11)
                for site in ("k", "v", "o", "down")
            }
        )

    def plan(self, tmp_path: Path, sha256: str | None = None) -> Plan:
        proxies = {"file": "proxies.safetensors", "sha256": sha256}
        return Plan.load(write(tmp_path, {**MINIMAL, "proxies": proxies}))

    def test_saved_proxies_read_back_bit_for_bit(self, tmp_path: Path) -> None:
        proxies = self.proxies()
        sha256 = proxies.save(tmp_path / "proxies.safetensors")
        read = ProxySet.for_plan(self.plan(tmp_path, sha256))
        read.check(self.plan(tmp_path), SPEC)
        assert read.tensors.keys() == proxies.tensors.keys()
        for name, vector in read.tensors.items():
            assert vector.tobytes() == proxies.tensors[name].tobytes()

    def test_other_proxies_than_the_plans_are_refused(self, tmp_path: Path) -> None:
        self.proxies().save(tmp_path / "proxies.safetensors")
        with pytest.raises(PlanError, match="not the ones the plan was made with"):
            ProxySet.for_plan(self.plan(tmp_path, "0" * 64))

    def test_a_file_of_something_else_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "proxies.safetensors").write_bytes(b"\x80\x04pickle")
        with pytest.raises(PlanError, match="is not a safetensors file"):
            ProxySet.for_plan(self.plan(tmp_path))

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(PlanError, match=r"proxies\.safetensors cannot be read"):
            ProxySet.for_plan(self.plan(tmp_path))

    @pytest.mark.parametrize(
        ("name", "vector", "sentence"),
        [
            ("layers.8.k.image", np.zeros(9, "f4"), r"layers\.8\.k\.image has shape \[9\].*\[4\]"),
            ("layers.7.o.image", np.full(8, np.nan, "f4"), "NaN or Inf"),
            ("layers.9.v.image", None, r"no layers\.9\.v\.image"),
        ],
    )
    def test_a_vector_that_does_not_fit_is_named(
        self, tmp_path: Path, name: str, vector: Any, sentence: str
    ) -> None:
        tensors = {**self.proxies().tensors, name: vector}
        if vector is None:
            del tensors[name]
        with pytest.raises(PlanError, match=sentence):
            ProxySet(tensors).check(self.plan(tmp_path), SPEC)

    def test_a_frozen_layer_needs_no_key_and_value(self, tmp_path: Path) -> None:
        tensors = dict(self.proxies().tensors)
        del tensors["layers.7.k.image"], tensors["layers.7.v.image"]
        ProxySet(tensors).check(self.plan(tmp_path), SPEC)
