"""`make_plan` and `evaluate`, the whole way on small models: files, numbers, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from calibration_models import batch_of, prompter_of, random_loaded, save_checkpoint, scenes
from random_models import random_proxies

from p2p_export import Plan, ProxySet
from p2p_export.calibration import planning
from p2p_export.calibration.accuracy import Accuracy
from p2p_export.calibration.answering import answer
from p2p_export.calibration.collecting import collect_proxies
from p2p_export.calibration.evaluation import evaluate
from p2p_export.calibration.loaded_model import LoadedModel
from p2p_export.calibration.patching import patched
from p2p_export.calibration.planned_splits import planned_split
from p2p_export.calibration.planning import make_plan, proxies_path_for
from p2p_export.calibration.samples import Sample
from p2p_export.calibration.scoring import is_correct
from p2p_export.calibration.sweep import Curves, answer_rows
from p2p_export.errors import InputError, PlanError
from p2p_export.models.checkpoint import find_checkpoint
from p2p_export.plan import PlanModel, PlanProxies
from p2p_export.proxies import SITES, STREAMS

LAYERS = 3
SMALL: dict[str, Any] = {
    "limit": 90,
    "calibration_size": 4,
    "validation_size": 20,
    "test_size": 15,
    "certification_size": 6,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of random weights that says "yes", and "no" once all its layers are patched."""
    loaded = random_loaded("tiny-llava", layers=LAYERS)
    samples = [sample for sample in scenes(60).samples if sample.task == "existence"]
    batch = batch_of(loaded, tuple(samples))
    with torch.no_grad():
        proxies = collect_proxies(loaded, prompter_of(loaded), samples)
        rows = answer_rows(loaded, proxies, batch)
        dense, patched_rows = rows.dense.mean(0), rows.backward[0].mean(0)
        middle, direction = (dense + patched_rows) / 2, dense - patched_rows
        direction -= middle * (direction @ middle) / (middle @ middle)
        head = loaded.model.lm_head.weight
        head.zero_()
        for word, sign in (("yes", 1), ("no", -1)):
            head[loaded.processor.tokenizer.convert_tokens_to_ids(word)] = sign * direction
    return save_checkpoint(loaded, "tiny-llava", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def outcome(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> planning.PlanOutcome:
    output = tmp_path_factory.mktemp("plan") / "plan.json"
    return make_plan(str(folder), "tiny-vqa", output=output, tolerance=0.2, **SMALL)


def test_plan_and_proxies_are_written_side_by_side(
    outcome: planning.PlanOutcome, folder: Path
) -> None:
    plan = Plan.load(outcome.plan_path)
    assert plan.to_dict() == outcome.plan.to_dict()
    assert plan.model.id == str(folder)
    assert (plan.model.architecture, plan.model.num_hidden_layers) == ("llava", LAYERS)
    assert plan.certificate is None
    assert outcome.proxies_path == outcome.plan_path.with_name("proxies.safetensors")
    proxies = ProxySet.for_plan(plan)
    assert len(proxies.tensors) == LAYERS * len(SITES) * len(STREAMS)
    assert json.loads(json.dumps(outcome.to_dict()))["passed"] == outcome.passed


def test_the_evidence_says_where_the_numbers_come_from(outcome: planning.PlanOutcome) -> None:
    evidence: Any = outcome.plan.evidence
    assert {name: split["questions"] for name, split in evidence["splits"].items()} == {
        "calibration": 4,
        "validation": 20,
        "certification": 6,
        "test": 15,
    }
    hashes = [split["sha256"] for split in evidence["splits"].values()]
    assert len(set(hashes)) == 4
    assert [point["layers"] for point in evidence["curves"]["forward"]] == [[0, 0], [0, 1], [0, 2]]
    assert [point["layers"] for point in evidence["curves"]["backward"]] == [[0, 2], [1, 2], [2, 2]]
    assert all(point["total"] == 20 for point in evidence["curves"]["forward"])
    assert evidence["accuracy"]["dense"]["total"] == 20
    assert evidence["flops"]["tokens"]["mean_visual"] == 64
    for convention in ("p2p", "needed"):
        assert 0 < evidence["flops"][convention]["ratio"] <= 1
    assert {"torch", "transformers", "p2p_export"} <= set(evidence["versions"])
    assert evidence["answers"]["max_new_tokens"] == 1
    assert evidence["seconds"]["total"] > 0


def write_questions(folder: Path, task: str, count: int) -> Path:
    """JSON lines and image files of the first `count` scenes, one task's question each."""
    lines = []
    for number, sample in enumerate(s for s in scenes(6 * count).samples if s.task == task):
        sample.image.load().save(folder / f"{number}.png")
        entry = {"image": f"{number}.png", "question": sample.question}
        lines.append(json.dumps({**entry, "answer": sample.answers[0]}))
    path = folder / "data.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def everything(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> planning.PlanOutcome:
    """A plan of all layers on yes-or-no questions: as if every sweep point had passed."""

    def all_pass(*_arguments: Any, **_options: Any) -> Curves:
        perfect = Accuracy(20, 20)
        return Curves(perfect, (perfect,) * LAYERS, (perfect,) * LAYERS)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(planning, "sweep", all_pass)
        place = tmp_path_factory.mktemp("everything")
        return make_plan(
            str(folder),
            write_questions(place, "existence", 50),
            output=place / "plan.json",
            calibration_size=4,
            validation_size=30,
            test_size=16,
        )


def answers_one_by_one(
    outcome: planning.PlanOutcome, samples: tuple[Sample, ...]
) -> tuple[list[str], list[str]]:
    """Dense and planned answers, one full pass per sample and no batch."""
    loaded = LoadedModel.load(find_checkpoint(outcome.plan.model.id))
    proxies = ProxySet.for_plan(Plan.load(outcome.plan_path))
    dense, planned = [], []
    for sample in samples:
        batch = batch_of(loaded, (sample,))
        dense += answer(loaded, batch, 1)
        with patched(loaded.model, outcome.plan, proxies, batch.visual_mask):
            planned += answer(loaded, batch, 1)
    return dense, planned


def test_the_union_is_measured_by_full_passes(everything: planning.PlanOutcome) -> None:
    samples = everything.splits["validation"].samples
    dense, planned = answers_one_by_one(everything, samples)
    assert everything.union == Accuracy.count(samples, map(is_correct, samples, planned))
    assert everything.union != Accuracy.count(samples, map(is_correct, samples, dense))


def test_evaluation_gives_dense_and_planned_answers(everything: planning.PlanOutcome) -> None:
    samples = everything.splits["test"].samples
    evaluation = evaluate(Plan.load(everything.plan_path))
    dense, planned = answers_one_by_one(everything, samples)
    assert dense != planned
    assert [pair.dense for pair in evaluation.pairs] == dense
    assert [pair.planned for pair in evaluation.pairs] == planned


def test_a_union_that_misses_is_written_and_not_passed(everything: planning.PlanOutcome) -> None:
    """Each direction passes by itself, the union does not: the paper never looks."""
    assert not everything.passed
    plan = Plan.load(everything.plan_path)
    assert plan.planned == (0, 1, 2)
    assert plan.certificate is None
    assert plan.evidence is not None
    assert plan.evidence["accuracy"]["within_tolerance"] is False


def test_the_same_seed_gives_the_same_plan(
    outcome: planning.PlanOutcome, folder: Path, tmp_path: Path
) -> None:
    again = make_plan(
        str(folder), "tiny-vqa", output=tmp_path / "plan.json", tolerance=0.2, **SMALL
    )
    assert again.plan.layers == outcome.plan.layers
    assert again.curves == outcome.curves
    assert again.proxies_path.read_bytes() == outcome.proxies_path.read_bytes()


def test_evaluate_answers_the_test_split(outcome: planning.PlanOutcome) -> None:
    plan = Plan.load(outcome.plan_path)
    evaluation = evaluate(plan)
    assert evaluation.split == "test"
    assert [pair.sample for pair in evaluation.pairs] == list(outcome.splits["test"].samples)
    assert evaluation.dense.total == evaluation.planned.total == 15
    assert evaluation.dense.correct == sum(pair.dense_correct for pair in evaluation.pairs)
    assert sum(total for _, total in evaluation.planned.tasks.values()) == 15
    document = json.loads(json.dumps(evaluation.to_dict()))
    assert len(document["answers"]) == 15
    # Planning and evaluation measure validation alike.
    assert evaluate(plan, split="validation").dense == outcome.dense
    assert evaluate(plan, split="validation").planned == outcome.union


def test_evaluate_scores_any_answerer_by_the_same_code(outcome: planning.PlanOutcome) -> None:
    plan = Plan.load(outcome.plan_path)
    right = evaluate(
        plan,
        dense_answerer=lambda samples: [sample.answers[0] for sample in samples],
        planned_answerer=lambda samples: ["wrong" for _ in samples],
    )
    assert (right.dense.value, right.planned.value) == (1.0, 0.0)


def test_evaluate_notices_other_data(outcome: planning.PlanOutcome) -> None:
    evidence = json.loads(json.dumps(outcome.plan.evidence))
    evidence["splits"]["test"]["sha256"] = "0" * 64
    with pytest.raises(InputError, match="test split of tiny-vqa is not the one"):
        evaluate(replace(outcome.plan, evidence=evidence))
    with pytest.raises(InputError, match="there is no split 'tset'"):
        evaluate(outcome.plan, split="tset")
    del evidence["sizes"]
    with pytest.raises(PlanError, match="cannot be read"):
        evaluate(replace(outcome.plan, evidence=evidence))


def test_evaluate_notices_other_weights(outcome: planning.PlanOutcome, tmp_path: Path) -> None:
    other = save_checkpoint(
        random_loaded("tiny-llava", layers=LAYERS, seed=7), "tiny-llava", tmp_path / "other"
    )
    plan = Plan.load(outcome.plan_path)
    with pytest.raises(PlanError, match="made for other weights"):
        evaluate(plan, checkpoint_name=str(other))


def test_a_plan_written_by_hand_is_evaluated_on_named_data(folder: Path, tmp_path: Path) -> None:
    spec = random_loaded("tiny-llava", layers=LAYERS).spec
    random_proxies(spec).save(tmp_path / "p.safetensors")
    plan = Plan(
        PlanModel(str(folder)),
        layers={1: "frozen"},
        proxies=PlanProxies("p.safetensors"),
        folder=tmp_path,
    )
    data = write_questions(tmp_path, "existence", 6)
    with pytest.raises(PlanError, match="has no evidence"):
        evaluate(plan)
    evaluation = evaluate(plan, data=data)
    assert (evaluation.split, evaluation.dense.total) == ("all", 6)


def test_the_recorded_split_comes_back(outcome: planning.PlanOutcome) -> None:
    for name, split in outcome.splits.items():
        assert planned_split(outcome.plan, name)[1] == split.samples


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tolerance": 1.0}, r"a tolerance of 1.0 is not in \[0, 1\)"),
        ({"validation_size": 0}, "a validation size of 0 is too small"),
        ({"data": "nowhere.jsonl"}, "no data at nowhere.jsonl"),
        ({"limit": 30}, r"5 images, too few for the splits.*more images are missing"),
        ({"checkpoint_name": "/nowhere"}, "no model folder at /nowhere"),
    ],
)
def test_bad_input_is_refused_before_the_model_is_loaded(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    sentence: str,
) -> None:
    def never(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(planning, "load_model", never)
    options = {"checkpoint_name": str(folder), "data": "tiny-vqa", **SMALL, **change}
    with pytest.raises(InputError, match=sentence) as caught:
        make_plan(output=tmp_path / "plan.json", **options)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_is_there_is_kept(folder: Path, outcome: planning.PlanOutcome) -> None:
    before = outcome.plan_path.read_bytes()
    with pytest.raises(InputError, match=r"plan.json is there already; .*--force"):
        make_plan(str(folder), "tiny-vqa", output=outcome.plan_path, **SMALL)
    assert outcome.plan_path.read_bytes() == before
    with pytest.raises(InputError, match="there is no folder"):
        make_plan(str(folder), "tiny-vqa", output=Path("/nowhere/plan.json"), **SMALL)


def test_nothing_right_to_lose_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dense accuracy of zero would let every layer pass."""
    none = Accuracy(0, 20)
    monkeypatch.setattr(
        planning, "sweep", lambda *a, **k: Curves(none, (none,) * LAYERS, (none,) * LAYERS)
    )
    with pytest.raises(InputError, match="answers none of the 20 validation questions"):
        make_plan(str(folder), "tiny-vqa", output=tmp_path / "plan.json", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_cannot_be_written_leaves_no_proxies(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_plan: Plan, path: Path) -> None:
        raise InputError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(Plan, "save", full)
    with pytest.raises(InputError, match="No space left"):
        make_plan(str(folder), "tiny-vqa", output=tmp_path / "plan.json", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_proxies_of_two_plans_in_one_folder_do_not_meet() -> None:
    assert proxies_path_for(Path("a/plan.json")) == Path("a/proxies.safetensors")
    assert proxies_path_for(Path("a/tight.json")) == Path("a/tight.proxies.safetensors")
