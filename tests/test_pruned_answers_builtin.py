"""On the whole test split the pruned bundle answers as the patched PyTorch model, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2p_export.calibration.evaluation import evaluate
from p2p_export.calibration.planning import make_plan
from p2p_export.cli.bundle_answers import answers_of
from p2p_export.export import export_bundle
from p2p_export.plan import Plan

TEST_QUESTIONS = 1000


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["tiny-llava", "tiny-qwen2.5-vl"])
def test_pruned_answers_are_those_of_the_patched_model(name: str, tmp_path: Path) -> None:
    make_plan(
        name,
        "tiny-vqa",
        output=tmp_path / "plan.json",
        calibration_size=60,
        validation_size=120,
        test_size=TEST_QUESTIONS,
        tolerance=0.1,
    )
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.planned
    bundle = tmp_path / "bundle"
    export_bundle(plan, bundle)
    asked = evaluate(
        plan,
        dense_answerer=answers_of(bundle, plan, dense=True),
        planned_answerer=answers_of(bundle, plan),
    )
    truth = evaluate(plan)
    assert len(asked.pairs) == TEST_QUESTIONS
    assert [pair.planned for pair in asked.pairs] == [pair.planned for pair in truth.pairs]
    assert [pair.dense for pair in asked.pairs] == [pair.dense for pair in truth.pairs]
    # The plan shows in the answers, so neither decoder can stand for the other.
    assert any(pair.planned != pair.dense for pair in truth.pairs)
