"""Accuracy of a plan against its dense model, on a split that planning set apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p_export.calibration.accuracy import Accuracy
from p2p_export.calibration.answering import answer, answer_tokens_needed
from p2p_export.calibration.batching import batch_size_for
from p2p_export.calibration.datasets import load_dataset
from p2p_export.calibration.embedding import embed
from p2p_export.calibration.loaded_model import LoadedModel
from p2p_export.calibration.patching import patched
from p2p_export.calibration.planned_splits import planned_split
from p2p_export.calibration.prompting import PromptBatch, Prompter
from p2p_export.calibration.samples import Sample
from p2p_export.calibration.savings import Savings
from p2p_export.calibration.scoring import is_correct
from p2p_export.errors import PlanError
from p2p_export.flops import Tokens
from p2p_export.models.checkpoint import find_checkpoint, load_model, load_processor
from p2p_export.plan import Plan
from p2p_export.progress import SILENT, Progress
from p2p_export.proxies import ProxySet

# Anything that answers: a bundle, an engine, a remote service. One text per sample, in order.
Answerer = Callable[[Sequence[Sample]], Sequence[str]]

WHOLE_DATASET = "all"


@dataclass(frozen=True)
class AnswerPair:
    """One sample with the dense and the planned answer."""

    sample: Sample
    dense: str
    planned: str

    @property
    def dense_correct(self) -> bool:
        return is_correct(self.sample, self.dense)

    @property
    def planned_correct(self) -> bool:
        return is_correct(self.sample, self.planned)

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.sample.id,
            "task": self.sample.task,
            "question": self.sample.question,
            "answers": list(self.sample.answers),
            "dense": self.dense,
            "planned": self.planned,
            "dense_correct": self.dense_correct,
            "planned_correct": self.planned_correct,
        }


@dataclass(frozen=True)
class Evaluation:
    """Dense and planned accuracy on the same samples, answer by answer."""

    split: str
    data: str
    dense: Accuracy
    planned: Accuracy
    pairs: tuple[AnswerPair, ...]
    savings: Savings

    def to_dict(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "split": self.split,
            "dense": self.dense.to_dict(),
            "planned": self.planned.to_dict(),
            "flops": self.savings.to_dict(),
            "answers": [pair.to_dict() for pair in self.pairs],
        }


def evaluate(
    plan: Plan,
    *,
    split: str = "test",
    data: str | Path | None = None,
    images: str | Path | None = None,
    limit: int | None = None,
    checkpoint_name: str | None = None,
    dense_answerer: Answerer | None = None,
    planned_answerer: Answerer | None = None,
    trust_remote_code: bool = False,
    progress: Progress = SILENT,
) -> Evaluation:
    """Answer a split with the dense and with the planned model, and score both.

    The split is the one planning made, from the plan's evidence; a plan without evidence needs
    `data`, which is then used whole. `limit` keeps the split's first questions. Without an
    answerer, answers come from PyTorch (the planned ones under `patched`), otherwise from the
    answerer, and the weights are loaded only if one of the two is missing.

    Raises `PlanError` when the plan is of another model, `InputError` when the data is not what
    the plan was made with or the split is empty.
    """
    samples, data_name, split_name = _samples(plan, split, data, images)
    samples = samples[:limit]
    checkpoint = find_checkpoint(
        plan.model.id if checkpoint_name is None else checkpoint_name,
        trust_remote_code=trust_remote_code,
    )
    if plan.model.fingerprint not in (None, checkpoint.fingerprint):
        raise PlanError(
            f"the plan was made for other weights than those of {checkpoint.id} (the fingerprints "
            "differ); make a plan for them with `p2p-export plan`"
        )
    plan.check_layers(checkpoint.spec.num_hidden_layers)
    proxies = ProxySet.for_plan(plan)
    proxies.check(plan, checkpoint.spec)
    processor = load_processor(checkpoint, trust_remote_code=trust_remote_code)
    prompter = Prompter(processor, checkpoint.family, checkpoint.config, plan.newline)
    prompter.check_questions(samples)
    loaded: LoadedModel | None = None
    if dense_answerer is None or planned_answerer is None:
        loaded = LoadedModel(load_model(checkpoint), processor, checkpoint.family)
    max_new_tokens = _max_new_tokens(plan, processor, samples)

    batch_size = batch_size_for(checkpoint.spec, prompter.prepare(samples[:1]).tokens[0])
    pairs: list[AnswerPair] = []
    tokens: list[Tokens] = []
    starts = range(0, len(samples), batch_size)
    for start in progress.track(starts, description="evaluate", total=len(starts)):
        group = samples[start : start + batch_size]
        prompts = prompter.prepare(group)
        given: dict[str, Sequence[str]] = {}
        if loaded is not None:
            given = _torch_answers(loaded, plan, proxies, prompts, max_new_tokens)
        dense = dense_answerer(group) if dense_answerer else given["dense"]
        planned = planned_answerer(group) if planned_answerer else given["planned"]
        for sample, before, after in zip(group, dense, planned, strict=True):
            pairs.append(AnswerPair(sample, before, after))
        tokens += prompts.tokens
    return Evaluation(
        split=split_name,
        data=data_name,
        dense=Accuracy.count(samples, [pair.dense_correct for pair in pairs]),
        planned=Accuracy.count(samples, [pair.planned_correct for pair in pairs]),
        pairs=tuple(pairs),
        savings=Savings.of(checkpoint.spec, tokens, plan.layers),
    )


def _samples(
    plan: Plan, split: str, data: str | Path | None, images: str | Path | None
) -> tuple[tuple[Sample, ...], str, str]:
    """Samples, data name and split name; `InputError` or `PlanError` as `planned_split`."""
    if plan.evidence is None and data is not None:
        dataset = load_dataset(data, images=images)
        return dataset.samples, dataset.name, WHOLE_DATASET
    dataset, samples = planned_split(plan, split, data=data, images=images)
    return samples, dataset.name, split


def _torch_answers(
    loaded: LoadedModel,
    plan: Plan,
    proxies: ProxySet,
    prompts: PromptBatch,
    max_new_tokens: int,
) -> dict[str, Sequence[str]]:
    batch = embed(loaded, prompts)
    dense = answer(loaded, batch, max_new_tokens)
    with patched(loaded.model, plan, proxies, batch.visual_mask):
        planned = answer(loaded, batch, max_new_tokens)
    return {"dense": dense, "planned": planned}


def _max_new_tokens(plan: Plan, processor: Any, samples: Sequence[Sample]) -> int:
    """The answer length planning used, so that both measure the same thing."""
    recorded = ((plan.evidence or {}).get("answers") or {}).get("max_new_tokens")
    if isinstance(recorded, int) and recorded > 0:
        return recorded
    return answer_tokens_needed(processor.tokenizer, samples)
