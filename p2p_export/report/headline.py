"""The one table that says what a plan costs and what it gains."""

from __future__ import annotations

from p2p_export.plan import Plan
from p2p_export.quantities import accuracy_text, bytes_text, flops_text, percent_text
from p2p_export.report.measurements import BenchResult, EvaluationResult, Evidence, Flops, Score
from p2p_export.report.view import Comparison, Figure, Table

TITLE = "Dense and pruned"


def headline_table(
    plan: Plan,
    evidence: Evidence | None,
    evaluation: EvaluationResult | None,
    bench: BenchResult | None,
) -> Table:
    """Rows for what was measured; nothing is filled in for what was not."""
    count = plan.model.num_hidden_layers
    of = f" of {count}" if count else ""
    rows: list[tuple[str, ...]] = [
        ("layers without visual computation", "0", f"{len(plan.planned)}{of}", "")
    ]
    if evaluation is not None:
        rows.append(_accuracy(f"{evaluation.split} split", evaluation.dense, evaluation.planned))
    elif evidence is not None:
        rows.append(_accuracy("validation split", evidence.dense, evidence.planned))
    rows += [
        (c.name, c.dense_text, c.pruned_text, percent_text(c.ratio))
        for c in comparisons(evidence, evaluation, bench)
    ]
    return Table(TITLE, ("", "dense", "pruned", "pruned / dense"), tuple(rows))


def comparisons(
    evidence: Evidence | None, evaluation: EvaluationResult | None, bench: BenchResult | None
) -> list[Comparison]:
    """FLOPs under both conventions, KV cache bytes, prefill and decode latency."""
    found: list[Comparison] = []
    flops = flops_of(evidence, evaluation)
    if flops is not None:
        at = f"one prefill of {flops.total_tokens:.1f} tokens, {flops.visual_tokens:.1f} visual"
        for name, counted in (("p2p", flops.p2p), ("needed", flops.needed)):
            found.append(
                Comparison(
                    f"FLOPs, convention {name}",
                    at,
                    counted.dense,
                    counted.planned,
                    flops_text(counted.dense),
                    flops_text(counted.planned),
                )
            )
    if bench is not None:
        kv = bench.kv_bytes
        found.append(
            Comparison(
                "KV cache behind the prompt",
                bench.shape,
                kv.dense,
                kv.planned,
                bytes_text(kv.dense),
                bytes_text(kv.planned),
            )
        )
        for name, time in (("prefill", bench.prefill_ms), ("decode, one token", bench.decode_ms)):
            found.append(
                Comparison(
                    f"ONNX Runtime {name}",
                    f"{bench.shape}; median",
                    time.dense,
                    time.planned,
                    f"{time.dense:.2f} ms",
                    f"{time.planned:.2f} ms",
                )
            )
    return found


def figures(
    evidence: Evidence | None, evaluation: EvaluationResult | None, bench: BenchResult | None
) -> list[Figure]:
    """The few numbers said large."""
    found: list[Figure] = []
    measured = evaluation or evidence
    if measured is not None:
        split = evaluation.split if evaluation else "validation"
        found.append(
            Figure(
                "Accuracy, pruned",
                percent_text(measured.planned.value),
                f"dense {percent_text(measured.dense.value)}; {measured.dense.total} {split} "
                "questions",
            )
        )
    flops = flops_of(evidence, evaluation)
    if flops is not None:
        ratio = flops.p2p.planned / flops.p2p.dense
        needed = flops.needed.planned / flops.needed.dense
        found.append(
            Figure("Prefill FLOPs", f"× {ratio:.2f}", f"convention p2p; needed × {needed:.2f}")
        )
    if bench is not None:
        time = bench.prefill_ms
        found.append(
            Figure(
                "Prefill time",
                f"× {time.planned / time.dense:.2f}",
                f"ONNX Runtime, {time.dense:.2f} → {time.planned:.2f} ms",
            )
        )
    return found


def flops_of(evidence: Evidence | None, evaluation: EvaluationResult | None) -> Flops | None:
    """FLOPs at the length of the questions that accuracy is told of."""
    measured = evaluation or evidence
    return None if measured is None else measured.flops


def _accuracy(split: str, dense: Score, planned: Score) -> tuple[str, ...]:
    return (
        f"accuracy, {split}",
        accuracy_text(dense.correct, dense.total),
        accuracy_text(planned.correct, planned.total),
        percent_text(planned.value / dense.value) if dense.correct else "–",
    )
