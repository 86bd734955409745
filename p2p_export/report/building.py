"""From plan, evaluation and benchmark to what the page shows."""

from __future__ import annotations

from p2p_export.errors import InputError
from p2p_export.plan import Plan
from p2p_export.quantities import accuracy_text, percent_text
from p2p_export.report.headline import comparisons, figures, headline_table
from p2p_export.report.measurements import (
    BenchResult,
    EvaluationResult,
    Evidence,
    Score,
    read_evidence,
)
from p2p_export.report.view import ReportView, Table


def build_view(
    plan: Plan, evaluation: EvaluationResult | None = None, bench: BenchResult | None = None
) -> ReportView:
    """Everything on the page; what was not measured is said to be missing, never filled in."""
    evidence = read_evidence(plan)
    count = plan.model.num_hidden_layers
    if count is None:
        raise InputError(
            "the plan does not say how many layers its model has; add `model.num_hidden_layers`"
        )
    measured = evaluation or evidence
    facts = {
        "model": f"{plan.model.id} ({plan.model.architecture or 'architecture not said'}), "
        f"fingerprint {(plan.model.fingerprint or 'not said')[:12]}",
        "planner": plan.planner or "not said",
        "proxies": f"{plan.proxies.kind or 'kind not said'}" if plan.proxies else "none needed",
        **(evidence.facts if evidence else {}),
    }
    if evaluation is not None:
        facts["answers on this page"] = f"{evaluation.answered_by}; {evaluation.data}"
    if bench is not None:
        facts |= {"latency": f"{bench.shape}; {bench.protocol}", "machine": bench.machine}
    facts["FLOPs"] = (
        "decoder prefill only, 2 × multiply-accumulates; p2p: the paper's convention, every row of "
        "every dense layer; needed: without rows that nobody reads later"
    )
    return ReportView(
        model=plan.model.id,
        summary=_summary(plan, count, evidence, evaluation),
        num_hidden_layers=count,
        layers=plan.layers,
        figures=figures(evidence, evaluation, bench),
        headline=headline_table(plan, evidence, evaluation, bench),
        curves=evidence.curves if evidence else (),
        dense_accuracy=evidence.dense.value if evidence else None,
        tolerance=plan.tolerance,
        comparisons=comparisons(evidence, evaluation, bench),
        tasks=_tasks(measured.dense, measured.planned, evaluation) if measured else None,
        gallery=evaluation.gallery if evaluation else (),
        gallery_note="One question of each of the first images of the split, whatever was "
        "answered, then the first questions on which dense and pruned differ (framed).",
        warnings=_warnings(plan, evidence),
        missing=_missing(evidence, evaluation, bench),
        facts=facts,
    )


def _summary(
    plan: Plan, count: int, evidence: Evidence | None, evaluation: EvaluationResult | None
) -> str:
    sentence = f"{len(plan.planned)} of {count} decoder layers no longer compute the visual tokens."
    measured = evaluation or evidence
    if measured is None:
        return sentence
    split = evaluation.split if evaluation else "validation"
    return (
        f"{sentence} Of {measured.dense.total} {split} questions the dense model answers "
        f"{measured.dense.correct} right, the pruned one {measured.planned.correct}."
    )


def _tasks(dense: Score, planned: Score, evaluation: EvaluationResult | None) -> Table:
    split = evaluation.split if evaluation else "validation"
    rows = []
    for task, (correct, total) in sorted(dense.tasks.items()):
        kept = planned.tasks.get(task, (0, total))[0]
        change = percent_text(kept / correct) if correct else "–"
        rows.append((task, accuracy_text(correct, total), accuracy_text(kept, total), change))
    return Table(
        f"By task, {split} split", ("task", "dense", "pruned", "pruned / dense"), tuple(rows)
    )


def _warnings(plan: Plan, evidence: Evidence | None) -> list[str]:
    warnings = []
    if evidence is not None and plan.tolerance is not None:
        kept = (1 - plan.tolerance) * evidence.dense.value
        if evidence.planned.value < kept - 1e-12:
            warnings.append(
                f"the planned layers together miss the tolerance of "
                f"{percent_text(plan.tolerance)} on the validation split."
            )
    if plan.certificate is None:
        warnings.append(
            "this plan has no certificate: its accuracy was measured, and nothing is guaranteed "
            "about questions that were not asked."
        )
    return warnings


def _missing(
    evidence: Evidence | None, evaluation: EvaluationResult | None, bench: BenchResult | None
) -> list[str]:
    missing = []
    if evidence is None:
        missing.append("Sensitivity curves: the plan carries no evidence.")
    if evaluation is None:
        missing.append(
            "Test questions and answers: no evaluation was given (p2p-export evaluate -o)."
        )
    if bench is None:
        missing.append("Latency and KV cache: no benchmark was given (p2p-export bench -o).")
    return missing
