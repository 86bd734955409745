"""How accuracy falls as layers are patched: cumulatively from the input, and from the output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from p2p_export.calibration.accuracy import Accuracy
from p2p_export.calibration.answering import answer, first_token_answers
from p2p_export.calibration.dense_pass import dense_pass
from p2p_export.calibration.embedding import DecoderBatch, embed
from p2p_export.calibration.loaded_model import LoadedModel
from p2p_export.calibration.patching import patched
from p2p_export.calibration.prompting import Prompter
from p2p_export.calibration.samples import Sample
from p2p_export.calibration.scoring import is_correct
from p2p_export.calibration.shared_prefix import Patch, SharedPrefix
from p2p_export.plan import Plan, PlanModel, PlanProxies
from p2p_export.progress import SILENT, Progress
from p2p_export.proxies import ProxySet

# One per sample of a batch, in order.
Answers = list[str]


@dataclass(frozen=True)
class SweepAnswers:
    """The answers to one batch: dense, `forward[i]` with layers 0..i, `backward[i]` with i..L-1."""

    dense: Answers
    forward: tuple[Answers, ...]
    backward: tuple[Answers, ...]


@dataclass(frozen=True)
class Curves:
    """Accuracy of the dense model and of each sweep point, on the same samples."""

    dense: Accuracy
    forward: tuple[Accuracy, ...]
    backward: tuple[Accuracy, ...]

    def to_dict(self) -> dict[str, Any]:
        last = len(self.forward) - 1
        return {
            "forward": [
                {"layers": [0, i], **accuracy.to_dict()} for i, accuracy in enumerate(self.forward)
            ],
            "backward": [
                {"layers": [i, last], **accuracy.to_dict()}
                for i, accuracy in enumerate(self.backward)
            ],
        }


def sweep(
    loaded: LoadedModel,
    prompter: Prompter,
    proxies: ProxySet,
    samples: Sequence[Sample],
    *,
    max_new_tokens: int,
    batch_size: int = 16,
    progress: Progress = SILENT,
) -> Curves:
    """Both curves over `samples`, each layer patched in mode `proxy`."""
    points = 2 * loaded.spec.num_hidden_layers + 1
    hits: list[list[bool]] = [[] for _ in range(points)]
    batches = prompter.batches(samples, batch_size)
    total = -(-len(samples) // batch_size)
    for prompts in progress.track(batches, description="sweep", total=total):
        answers = sweep_batch(loaded, proxies, embed(loaded, prompts), max_new_tokens)
        for point, given in enumerate([answers.dense, *answers.forward, *answers.backward]):
            hits[point] += map(is_correct, prompts.samples, given)
    dense, *rest = [Accuracy.count(samples, point) for point in hits]
    middle = len(rest) // 2
    curves = Curves(dense, tuple(rest[:middle]), tuple(rest[middle:]))
    for line in curve_lines(curves):
        progress.say(line)
    return curves


def curve_lines(curves: Curves) -> Iterator[str]:
    """The sweep as lines of text, such as `forward 0..3  acc 0.912 (912/1000)`."""
    last = len(curves.forward) - 1
    yield f"dense  acc {curves.dense}"
    for i, accuracy in enumerate(curves.forward):
        yield f"forward 0..{i}  acc {accuracy}"
    for i in reversed(range(last + 1)):
        yield f"backward {i}..{last}  acc {curves.backward[i]}"


def sweep_batch(
    loaded: LoadedModel, proxies: ProxySet, batch: DecoderBatch, max_new_tokens: int
) -> SweepAnswers:
    """All sweep points of one batch."""
    with torch.no_grad():
        if max_new_tokens == 1:
            rows = answer_rows(loaded, proxies, batch)
            return SweepAnswers(
                first_token_answers(loaded, rows.dense),
                tuple(first_token_answers(loaded, row) for row in rows.forward),
                tuple(first_token_answers(loaded, row) for row in rows.backward),
            )
    layers = range(loaded.spec.num_hidden_layers)
    last = len(layers) - 1

    def answers(first: int, until: int) -> Answers:
        with patched(loaded.model, proxy_plan(first, until), proxies, batch.visual_mask):
            return answer(loaded, batch, max_new_tokens)

    return SweepAnswers(
        dense=answer(loaded, batch, max_new_tokens),
        forward=tuple(answers(0, i) for i in layers),
        backward=tuple(answers(i, last) for i in layers),
    )


def proxy_plan(first: int, last: int) -> Plan:
    """A plan with layers first..last in mode `proxy`, for patching alone."""
    return Plan(
        PlanModel("swept"),
        layers=dict.fromkeys(range(first, last + 1), "proxy"),
        proxies=PlanProxies("swept"),
    )


@dataclass(frozen=True)
class AnswerRows:
    """Hidden states of the answer position behind the final norm, [B,D], of every sweep point."""

    dense: torch.Tensor
    forward: tuple[torch.Tensor, ...]
    backward: tuple[torch.Tensor, ...]


def answer_rows(loaded: LoadedModel, proxies: ProxySet, batch: DecoderBatch) -> AnswerRows:
    """Every point from states that others share, instead of a full pass each.

    A forward point continues from the patched prefix, which grows by one layer at a time; a
    backward point starts from what its first layer read in the dense pass.
    """
    dense = dense_pass(loaded, batch)
    rows = SharedPrefix(loaded, batch, dense)
    count = loaded.spec.num_hidden_layers

    def patch(first: int, last: int) -> Patch:
        return lambda visual: patched(loaded.model, proxy_plan(first, last), proxies, visual)

    def unpatched(_visual: torch.Tensor) -> AbstractContextManager[None]:
        return nullcontext()

    forward: list[torch.Tensor] = []
    prefix = rows.entry(0)
    for i in range(count):
        prefix = rows.run(prefix, [i], patch(i, i))
        forward.append(rows.answer(rows.run(prefix, range(i + 1, count), unpatched)))
    backward = [
        rows.answer(rows.run(rows.entry(i), range(i, count), patch(i, count - 1)))
        for i in range(count)
    ]
    return AnswerRows(dense.answer, tuple(forward), tuple(backward))
