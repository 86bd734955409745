"""Asking a bundle the questions of an evaluation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from p2p_export.engines.answering import BundleAnswerer, Question
from p2p_export.plan import Plan

if TYPE_CHECKING:
    from p2p_export.calibration.evaluation import Answerer
    from p2p_export.calibration.samples import Sample

# When the plan does not record how long the answers of its data are.
MAX_NEW_TOKENS = 16


def bundle_answers(folder: str | os.PathLike[str], plan: Plan) -> dict[str, Answerer]:
    """`dense_answerer` and `planned_answerer` for `evaluate`: the two decoders of a bundle."""
    recorded = ((plan.evidence or {}).get("answers") or {}).get("max_new_tokens")
    longest = recorded if isinstance(recorded, int) and recorded > 0 else MAX_NEW_TOKENS
    return {
        "dense_answerer": _asking(BundleAnswerer(folder, dense=True), longest),
        "planned_answerer": _asking(BundleAnswerer(folder), longest),
    }


def _asking(answerer: BundleAnswerer, max_new_tokens: int) -> Answerer:
    def answer(samples: Sequence[Sample]) -> list[str]:
        questions = [Question([sample.image.load()], sample.question) for sample in samples]
        given = answerer.answer_batch(questions, max_new_tokens=max_new_tokens)
        return [each.text for each in given]

    return answer
