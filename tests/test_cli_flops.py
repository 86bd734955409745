"""`flops` against the numbers the paper's rows give, worked out by hand here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2p_export.cli.main import main

TOKENS = ["--tokens", "100", "--visual-tokens", "64"]


def counts(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, float]]:
    document = json.loads(capsys.readouterr().out)
    return {count["convention"]: count for count in document["flops"]}


def test_a_model_without_a_plan_counts_the_same_dense_and_planned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["flops", "--model", "tiny-llava", *TOKENS, "--json"]) == 0
    for count in counts(capsys).values():
        assert count["dense"] == count["planned"] > 0


def test_convention_p2p_is_design_s_formula(capsys: pytest.CaptureFixture[str]) -> None:
    from p2p_export.models.checkpoint import builtin_models, find_checkpoint

    assert "tiny-llava" in builtin_models()
    text = find_checkpoint("tiny-llava").config.get_text_config()
    layers, width, mlp = text.num_hidden_layers, text.hidden_size, text.intermediate_size
    rows, visual = 100, 64
    per_row = 2 * (4 * width * width + 3 * width * mlp)
    dense = layers * (rows * per_row + 4 * rows * rows * width) + 2 * width * text.vocab_size
    left = rows - visual
    saved = 2 * (visual * per_row + 4 * rows * rows * width - 4 * left * rows * width)
    argv = ["flops", "--model", "tiny-llava", "--layers", f"0,{layers - 1}", *TOKENS, "--json"]
    assert main(argv) == 0
    count = counts(capsys)["p2p"]
    assert count["dense"] == pytest.approx(dense)
    assert count["planned"] == pytest.approx(dense - saved)


def test_a_plan_names_its_model_and_frozen_layers_cost_more_than_proxy_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = {}
    for mode in ("proxy", "frozen"):
        path = tmp_path / f"{mode}.json"
        plan = {
            "format": "p2p-plan/1",
            "model": {"id": "tiny-llava"},
            "layers": {"4": mode},
            "proxies": {"file": "p.safetensors"},
        }
        path.write_text(json.dumps(plan))
        assert main(["flops", "--plan", str(path), *TOKENS, "--json"]) == 0
        planned[mode] = counts(capsys)["p2p"]["planned"]
    assert planned["proxy"] < planned["frozen"]


def test_the_table_names_its_conventions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flops", "--model", "tiny-llava", "--layers", "8-9:frozen", *TOKENS]) == 0
    shown = capsys.readouterr().out
    assert "convention p2p" in shown
    assert "convention needed" in shown
    assert "2 layers planned" in shown


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--tokens", "10", "--visual-tokens", "4"], "no model"),
        (["--model", "tiny-llava"], "--tokens"),
        (["--model", "tiny-llava", "--tokens", "10", "--visual-tokens", "11"], "above --tokens"),
        (["--model", "tiny-llava", "--layers", "99", *TOKENS], "layer 99"),
        (["--model", "./nowhere", *TOKENS], "no model folder"),
    ],
)
def test_what_cannot_be_counted_is_said(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["flops", *argv]) == 2
    assert words in capsys.readouterr().err
