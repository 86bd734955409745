"""What the verbs print and return on a small model, a small plan and its bundle."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_files import MODEL, SMALL_SPLITS, working_copy

from p2p_export.cli.main import main

PLAN = ["plan", "--model", f"./{MODEL}", "--data", "questions.jsonl", "--images", "photos"]
PLAN += SMALL_SPLITS
ASK = ["--image", "photo.png", "--prompt", "is there a red circle ?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with working_copy(tmp_path_factory.mktemp("verbs") / "here") as here:
        yield here


@pytest.fixture
def document(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The JSON that a command prints with --json; stdout must hold nothing else."""

    def call(*argv: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*argv, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return call


def test_plan_writes_what_it_prints(document: Callable[..., Any], folder: Path) -> None:
    printed = document(*PLAN, "--tolerance", "0.9", "-o", "one.json")
    written = json.loads((folder / "one.json").read_text())
    assert printed["layers"] == written["layers"]
    assert printed["passed"] is True
    assert (folder / printed["proxies"]).is_file()
    assert written["model"]["id"] == f"./{MODEL}"


def test_a_union_that_misses_the_tolerance_returns_1_and_still_writes(
    document: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from p2p_export.calibration import planning

    monkeypatch.setattr(planning, "within_tolerance", lambda *_: False)
    printed = document(*PLAN, "-o", "missed.json", code=1)
    assert printed["passed"] is False
    written = json.loads((folder / "missed.json").read_text())
    assert written["certificate"] is None
    assert (folder / printed["proxies"]).is_file()


def test_validate_passes_the_bundle_and_fails_a_damaged_one(
    document: Callable[..., Any], folder: Path
) -> None:
    assert document("validate", "bundle")["passed"] is True
    shutil.copytree(folder / "bundle", folder / "damaged")
    weights = folder / "damaged" / "decoder.weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-64:] = bytes(byte ^ 1 for byte in content[-64:])
    weights.write_bytes(content)
    report = document("validate", "damaged", code=1)
    assert any(not check["passed"] for check in report["checks"])


def test_validate_names_the_failed_check_in_its_table(
    document: Callable[..., Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "bundle", folder / "short")
    (folder / "short" / "decoder.weights.safetensors").write_bytes(b"cut")
    assert main(["validate", "short"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED" in shown
    assert "decoder.weights.safetensors" in shown


def test_run_prints_the_answer_alone_on_stdout(
    document: Callable[..., Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = document("run", "bundle", *ASK, "--max-new-tokens", "1")
    assert told["text"] in ("yes", "no")
    assert told["visual_tokens"] == 64
    assert main(["run", "bundle", *ASK, "--max-new-tokens", "1"]) == 0
    assert capsys.readouterr().out.strip() == told["text"]
    assert document("run", "bundle", *ASK, "--dense")["decoder"] == "dense"


def test_bench_measures_both_decoders_at_the_lengths_asked_for(
    document: Callable[..., Any], folder: Path
) -> None:
    argv = ["bench", "bundle", "--visual-tokens", "32", "--text-tokens", "8", "--repeats", "2"]
    printed = document(*argv, "-o", "bench.json")
    assert printed["shapes"] == {"batch": 1, "visual_tokens": 32, "text_tokens": 8}
    assert printed["dense"]["prefill"]["repeats"] == 2
    assert json.loads((folder / "bench.json").read_text()) == printed


def test_evaluate_in_pytorch_and_from_the_bundle_agree_answer_by_answer(
    document: Callable[..., Any],
) -> None:
    in_torch = document("evaluate", "--plan", "plan.json")
    in_bundle = document("evaluate", "bundle")
    assert in_bundle["dense"]["total"] == 6
    assert in_bundle["answers"] == in_torch["answers"]
    assert in_bundle["answered_by"] != in_torch["answered_by"]


def test_evaluate_keeps_answers_and_images_for_the_report(
    document: Callable[..., Any], folder: Path
) -> None:
    assert "gallery" not in document("evaluate", "bundle", "--limit", "3", "-o", "some.json")
    kept = json.loads((folder / "some.json").read_text())
    assert len(kept["answers"]) == 3
    assert kept["gallery"][0]["image"].startswith("data:image/png;base64,")


def test_rewrite_says_what_it_did(document: Callable[..., Any], folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    argv = ["rewrite", "bundle/decoder.dense.onnx", "--plan", "plan.json"]
    printed = document(*argv, "-o", "elsewhere/pruned.onnx")
    assert printed["proxy_layers"] == [1, 2]
    assert (folder / "elsewhere" / printed["weight_files"][0]).is_file()
    # The weights are linked there now, and the bundle is as good as before.
    report = document("validate", "bundle")
    skipped = [check["name"] for check in report["checks"] if check["skipped"]]
    assert all(name.startswith("onnx checker") for name in skipped)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("plan.json", "plan"), ("bundle", "bundle"), ("bundle/decoder.onnx", "onnx")],
)
def test_inspect_knows_our_files(document: Callable[..., Any], name: str, kind: str) -> None:
    assert document("inspect", name)["kind"] == kind


@pytest.mark.slow
def test_the_demo_replaces_its_own_outputs(document: Callable[..., Any], folder: Path) -> None:
    for _ in range(2):
        printed = document("demo", "--questions", "24", "-o", "shown")
        assert printed["problems"] == []
    for name in ("plan.json", "bundle/manifest.json", "report.html"):
        assert (folder / "shown" / name).is_file()
