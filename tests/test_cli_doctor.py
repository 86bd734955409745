"""`doctor` says what is really so."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from p2p_export.cli import diagnosis
from p2p_export.cli.diagnosis import TINY_MODEL, Package, diagnose
from p2p_export.cli.main import main


def test_it_finds_this_machine_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    packages = {package["name"]: package for package in document["packages"]}
    assert packages["torch"]["installed"] == metadata.version("torch")
    assert packages["torch"]["verdict"] == "ok"
    cpu = [e for e in document["engines"] if "CPUExecutionProvider" in e["name"]]
    assert [e["starts"] for e in cpu] == [True]
    assert {"tiny-llava", "tiny-qwen2.5-vl"} <= set(document["builtin_models"])
    assert document["problems"] == []


def test_the_table_says_what_to_do_about_tensorrt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "TensorRT-RTX" in shown
    assert "Nothing to do." in shown


def test_the_tiny_model_is_the_one_it_claims_to_be() -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(TINY_MODEL)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Add"]
    assert [entry.version for entry in model.opset_import] == [18]


def test_a_provider_that_is_listed_and_cannot_start_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import onnxruntime

    listed = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: listed)
    engines = {engine.name.rpartition(" ")[2]: engine for engine in diagnose().engines}
    assert not engines["CUDAExecutionProvider"].starts
    assert engines["CPUExecutionProvider"].starts


def test_a_version_out_of_range_returns_1_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = metadata.version
    monkeypatch.setattr(
        diagnosis.metadata, "version", lambda name: "4.0" if name == "transformers" else real(name)
    )
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "out of range" in shown
    assert "pip install 'transformers" in shown


def test_both_onnxruntime_distributions_are_a_problem() -> None:
    both = tuple(Package(name, "cpu", "", "1.32", "ok") for name in diagnosis.RUNTIMES)
    problems = diagnosis._problems(both, (), ("tiny-llava",))
    assert any("overwrite each other" in problem for problem in problems)
