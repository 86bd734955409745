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


def answers_of(folder: str | os.PathLike[str], plan: Plan, *, dense: bool = False) -> Answerer:
    """Ask the pruned decoder of a bundle, or its dense one; answers as long as planning's."""
    recorded = ((plan.evidence or {}).get("answers") or {}).get("max_new_tokens")
    longest = recorded if isinstance(recorded, int) and recorded > 0 else MAX_NEW_TOKENS
    answerer = BundleAnswerer(folder, dense=dense)

    def answer(samples: Sequence[Sample]) -> list[str]:
        questions = [Question([sample.image.load()], sample.question) for sample in samples]
        given = answerer.answer_batch(questions, max_new_tokens=longest)
        return [each.text for each in given]

    return answer
