"""`make_plan`: calibrate, sweep, choose, re-check the choice, write plan and proxies."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from p2p_export.calibration.accuracy import Accuracy
from p2p_export.calibration.answering import answer, answer_tokens_needed
from p2p_export.calibration.batching import batch_size_for
from p2p_export.calibration.collecting import collect_proxies
from p2p_export.calibration.datasets import Dataset, content_hash, load_dataset
from p2p_export.calibration.embedding import embed
from p2p_export.calibration.loaded_model import LoadedModel
from p2p_export.calibration.patching import patched
from p2p_export.calibration.planners import check_tolerance, largest_union, within_tolerance
from p2p_export.calibration.prompting import Prompter
from p2p_export.calibration.samples import Sample
from p2p_export.calibration.savings import Savings
from p2p_export.calibration.scoring import is_correct, variant
from p2p_export.calibration.splits import Split, SplitName, SplitSizes, split_dataset
from p2p_export.calibration.sweep import Curves, sweep
from p2p_export.calibration.versions import versions
from p2p_export.errors import InputError
from p2p_export.flops import Tokens
from p2p_export.models.checkpoint import find_checkpoint, load_model, load_processor
from p2p_export.output_file import check_output_file
from p2p_export.plan import Newline, Plan, PlanModel, PlanProxies
from p2p_export.progress import SILENT, Progress
from p2p_export.proxies import ProxySet

PLANNER = "paper"
PROXY_KIND = "mean"


@dataclass(frozen=True)
class PlanOutcome:
    """What planning found. `passed`: the union, measured on validation, is within tolerance."""

    plan: Plan
    plan_path: Path
    proxies_path: Path
    passed: bool
    dense: Accuracy
    union: Accuracy
    curves: Curves
    splits: Mapping[SplitName, Split]

    def to_dict(self) -> dict[str, Any]:
        return {
            "plan": str(self.plan_path),
            "proxies": str(self.proxies_path),
            "passed": self.passed,
            "layers": {str(layer): self.plan.mode(layer) for layer in self.plan.planned},
            "tolerance": self.plan.tolerance,
            "dense": self.dense.to_dict(),
            "planned": self.union.to_dict(),
            "curves": self.curves.to_dict(),
            "splits": {name: split.to_dict() for name, split in self.splits.items()},
            "flops": (self.plan.evidence or {}).get("flops"),
        }


def make_plan(
    checkpoint_name: str,
    data: str | Path,
    *,
    output: Path,
    images: str | Path | None = None,
    limit: int | None = None,
    tolerance: float = 0.03,
    calibration_size: int = 100,
    validation_size: int = 1000,
    certification_size: int = 0,
    test_size: int = 1000,
    seed: int = 0,
    max_new_tokens: int | None = None,
    newline: Newline = "visual",
    force: bool = False,
    trust_remote_code: bool = False,
    progress: Progress = SILENT,
) -> PlanOutcome:
    """Find the layers of a model that need no visual computation; write `output` and its proxies.

    `tolerance` is relative to the dense accuracy. Sizes are questions; `limit` keeps the first
    questions of the data only. `max_new_tokens` is the longest answer to generate; by default 1
    where every right answer is one token. Everything that can be refused is refused before the
    model is loaded. Raises `InputError` for input that cannot be used; a union that misses the
    tolerance is no error: the files are written and `passed` is False.
    """
    started = time.monotonic()
    check_tolerance(tolerance)
    if max_new_tokens is not None and max_new_tokens < 1:
        raise InputError(f"answers of {max_new_tokens} tokens say nothing; allow 1 or more")
    sizes = SplitSizes(calibration_size, validation_size, certification_size, test_size)
    proxies_path = proxies_path_for(output)
    check_output(output, proxies_path, force=force)
    for path in (output, proxies_path):
        check_output_file(path, {"the data": data})
    checkpoint = find_checkpoint(checkpoint_name, trust_remote_code=trust_remote_code)
    dataset = load_dataset(data, images=images, limit=limit)
    splits = split_dataset(dataset, sizes, seed)

    seconds: dict[str, float] = {}
    with _timed(seconds, "load"):
        processor = load_processor(checkpoint, trust_remote_code=trust_remote_code)
        prompter = Prompter(processor, checkpoint.family, checkpoint.config, newline)
        prompter.check_questions(dataset.samples)
        loaded = LoadedModel(load_model(checkpoint), processor, checkpoint.family)
    if max_new_tokens is None:
        max_new_tokens = answer_tokens_needed(loaded.processor.tokenizer, dataset.samples)
    validation = splits["validation"].samples
    batch_size = batch_size_for(loaded.spec, prompter.prepare(validation[:1]).tokens[0])
    with _timed(seconds, "calibrate"):
        proxies = collect_proxies(
            loaded,
            prompter,
            splits["calibration"].samples,
            batch_size=batch_size,
            progress=progress,
        )
    with _timed(seconds, "sweep"):
        curves = sweep(
            loaded,
            prompter,
            proxies,
            validation,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            progress=progress,
        )
    _check_dense_answers(curves.dense, checkpoint.id, dataset)
    layers = largest_union(curves.forward, curves.backward, curves.dense, tolerance)
    plan = Plan(
        PlanModel(
            checkpoint.id,
            loaded.family.architecture,
            loaded.spec.num_hidden_layers,
            checkpoint.fingerprint,
        ),
        layers=dict.fromkeys(layers, "proxy"),
        newline=newline,
        proxies=PlanProxies(proxies_path.name, kind=PROXY_KIND),
        tolerance=tolerance,
        planner=PLANNER,
        folder=output.parent,
    )
    with _timed(seconds, "re-check"):
        union, tokens = _recheck(
            loaded, prompter, plan, proxies, validation, max_new_tokens, batch_size, progress
        )
    passed = within_tolerance(union, curves.dense, tolerance)
    progress.say(
        f"union {_ranges(plan)}  acc {union}, {'within' if passed else 'MISSES'} tolerance"
    )
    seconds["total"] = time.monotonic() - started

    evidence = {
        "data": _data_record(dataset, images, limit),
        "seed": seed,
        "sizes": {name: getattr(sizes, name) for name in splits},
        "splits": {name: split.to_dict() for name, split in splits.items()},
        "answers": {
            "max_new_tokens": max_new_tokens,
            "scoring": sorted({variant(sample) for sample in validation}),
        },
        "accuracy": {
            "split": "validation",
            "dense": curves.dense.to_dict(),
            "planned": union.to_dict(),
            "within_tolerance": passed,
        },
        "curves": curves.to_dict(),
        "flops": Savings.of(loaded.spec, tokens, plan.layers).to_dict(),
        "versions": versions(),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
    }
    check_output(output, proxies_path, force=force)
    plan = _write(replace(plan, evidence=evidence), proxies, output, proxies_path)
    return PlanOutcome(plan, output, proxies_path, passed, curves.dense, union, curves, splits)


def proxies_path_for(plan_path: Path) -> Path:
    """`proxies.safetensors` beside plan.json; beside another name, `NAME.proxies.safetensors`."""
    if plan_path.name == "plan.json":
        return plan_path.with_name("proxies.safetensors")
    return plan_path.with_name(f"{plan_path.stem}.proxies.safetensors")


def check_output(plan_path: Path, proxies_path: Path, *, force: bool) -> None:
    """Raise `InputError` when the files cannot be written, or exist and `force` is not given."""
    if not plan_path.parent.is_dir():
        raise InputError(f"there is no folder {plan_path.parent} for {plan_path.name}; create it")
    for path in (plan_path, proxies_path):
        if path.is_dir():
            raise InputError(f"{path} is a folder; name a file for the plan")
        if path.exists() and not force:
            raise InputError(f"{path} is there already; name another file or add --force")


def _write(plan: Plan, proxies: ProxySet, output: Path, proxies_path: Path) -> Plan:
    """Write both files or, where none stood before, neither; return the plan as written."""
    stood_before = proxies_path.exists()
    sha256 = proxies.save(proxies_path)
    plan = replace(plan, proxies=PlanProxies(proxies_path.name, sha256, PROXY_KIND))
    try:
        plan.save(output)
    except InputError:
        if not stood_before:
            proxies_path.unlink()
        raise
    return plan


def _check_dense_answers(dense: Accuracy, model: str, dataset: Dataset) -> None:
    """With nothing right to lose, every layer would pass."""
    if dense.correct == 0:
        raise InputError(
            f"{model} answers none of the {dense.total} validation questions of {dataset.name} "
            "right before anything is patched; check that its answers look like those of the data"
        )


def _recheck(
    loaded: LoadedModel,
    prompter: Prompter,
    plan: Plan,
    proxies: ProxySet,
    samples: Sequence[Sample],
    max_new_tokens: int,
    batch_size: int,
    progress: Progress,
) -> tuple[Accuracy, list[Tokens]]:
    """Accuracy of the plan as a whole, by full passes under `patched`; the prompts' lengths."""
    hits: list[bool] = []
    tokens: list[Tokens] = []
    batches = prompter.batches(samples, batch_size)
    total = -(-len(samples) // batch_size)
    for prompts in progress.track(batches, description="re-check", total=total):
        batch = embed(loaded, prompts)
        with patched(loaded.model, plan, proxies, batch.visual_mask):
            answers = answer(loaded, batch, max_new_tokens)
        hits += map(is_correct, prompts.samples, answers)
        tokens += prompts.tokens
    return Accuracy.count(samples, hits), tokens


def _data_record(dataset: Dataset, images: str | Path | None, limit: int | None) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "images": None if images is None else str(images),
        "limit": limit,
        "questions": len(dataset.samples),
        "image_count": dataset.image_count,
        "sha256": content_hash(dataset.samples),
    }


def _ranges(plan: Plan) -> str:
    """`0..1, 5..11`: the planned layers as regions."""
    return ", ".join(f"{r.first}..{r.last}" for r in plan.regions) or "of no layers"


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[name] = time.monotonic() - started
