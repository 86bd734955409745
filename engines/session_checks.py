"""Checks of the session: what must not depend on what was asked before, how a prompt is cut,
what is beside it in the batch, or where the caller stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import p2p_export
from p2p_export.bindings import (
    INPUTS_EMBEDS,
    LOGITS,
    POSITION_IDS,
    TEXT_INDEX,
    VISUAL_END,
    VISUAL_START,
)
from p2p_export.bundle import Bundle
from p2p_export.engines.answer_checks import Deviation, deviation
from p2p_export.engines.check import Check
from p2p_export.engines.goldens import GoldenCase, load_goldens
from p2p_export.engines.onnxruntime_backend import OnnxRuntimeOptions
from p2p_export.engines.row_layouts import LayoutError
from p2p_export.engines.session import Session, start
from p2p_export.manifest import DECODER_FILE, Golden, Limits

ELSEWHERE = """
import json, sys
import numpy as np
from p2p_export.engines import open_bundle
logits, _ = open_bundle(sys.argv[1]).prefill(*np.load(sys.argv[2]).values())
json.dump(logits.tolist(), sys.stdout)
"""
ELSEWHERE_SECONDS = 300


Rows = tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.bool_]]


@dataclass(frozen=True)
class Prompt:
    """Arguments of `Session.prefill` and the logits PyTorch gave for them."""

    inputs_embeds: npt.NDArray[Any]
    position_ids: npt.NDArray[np.int64]
    visual_mask: npt.NDArray[np.bool_]
    logits: npt.NDArray[np.float32]

    def rows(self, begin: int = 0, end: int | None = None) -> Rows:
        """Arguments for the prompt, or for a part of it."""
        return (
            self.inputs_embeds[:, begin:end],
            self.position_ids[..., begin:end],
            self.visual_mask[:, begin:end],
        )


def session_answers(bundle: Bundle) -> Iterator[Check]:
    """What a session answers to the golden prompts, however it is asked."""
    session, prompts = start(bundle, OnnxRuntimeOptions()), _prompts(bundle)
    if not prompts:
        yield Check("session", True, "no golden prompt fits the bundle's limits", skipped=True)
        return
    yield _repeated(session, prompts)
    yield _chunked(session, prompts)
    yield _padded(session, prompts)
    yield _elsewhere(bundle, prompts[0])


def _repeated(session: Session, prompts: list[Prompt]) -> Check:
    """A, then B, then A again: the same answer, bit by bit."""
    first = [session.prefill(*prompt.rows())[0] for prompt in prompts]
    again = session.prefill(*prompts[0].rows())[0]
    same = np.array_equal(first[0], again)
    found = "the same answer" if same else "another answer the second time"
    return Check("A, B, A", same, found)


def _chunked(session: Session, prompts: list[Prompt]) -> Check:
    """A prompt in two chunks, cut inside its image where it has one."""
    golden = session.manifest.golden
    deviations = []
    for prompt in prompts:
        with suppress(LayoutError):  # a chunk of visual rows alone, where the layout has none
            deviations.append(_off(golden, prompt.logits, _in_two(session, prompt)))
    worst = max(deviations, key=lambda d: d.share)
    return Check("prefill in chunks", worst.share <= 1.0, str(worst))


def _padded(session: Session, prompts: list[Prompt]) -> Check:
    """Prompts of unequal length in one batch, padded on the left."""
    limit = session.manifest.limits.max_batch
    singles = [_batch_row(p, row) for p in prompts for row in range(len(p.logits))][:limit]
    length = max(single.visual_mask.shape[1] for single in singles)
    ones = [np.ones(single.visual_mask.shape, dtype=np.int64) for single in singles]
    try:
        logits, _ = session.prefill(
            np.concatenate([_left(single.inputs_embeds, length, 1) for single in singles]),
            np.concatenate([_left(single.position_ids, length, -1) for single in singles], axis=-2),
            np.concatenate([_left(single.visual_mask, length, 1) for single in singles]),
            np.concatenate([_left(one, length, 1) for one in ones]),
        )
    except LayoutError:
        reason = f"layout {session.manifest.layout} cannot say that images lie at other places"
        return Check("padded batch", True, reason, skipped=True)
    expected = np.concatenate([single.logits for single in singles])
    worst = _off(session.manifest.golden, expected, logits)
    return Check("padded batch", worst.share <= 1.0, f"{len(singles)} rows; {worst}")


def _elsewhere(bundle: Bundle, prompt: Prompt) -> Check:
    """Another process, in another working folder."""
    name = "another working folder"
    with tempfile.TemporaryDirectory() as folder:
        arrays = f"{folder}/prompt.npz"
        np.savez(arrays, *prompt.rows())
        try:
            ran = subprocess.run(
                [sys.executable, "-c", ELSEWHERE, str(bundle.folder), arrays],
                cwd=folder,
                env=_environment(),
                capture_output=True,
                text=True,
                timeout=ELSEWHERE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Check(name, False, f"no answer within {ELSEWHERE_SECONDS} s")
    if ran.returncode != 0:
        return Check(name, False, (ran.stderr.strip().splitlines() or ["no message"])[-1])
    found = np.array(json.loads(ran.stdout), dtype=np.float32)
    worst = _off(bundle.manifest.golden, prompt.logits, found)
    return Check(name, worst.share <= 1.0, str(worst))


def _environment() -> dict[str, str]:
    """Ours, with this very package in front: a relative PYTHONPATH would lead nowhere."""
    package = Path(p2p_export.__file__).resolve().parent.parent
    paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _prompts(bundle: Bundle) -> list[Prompt]:
    """The golden prompts that the bundle's limits admit."""
    cases = load_goldens(bundle.folder, DECODER_FILE, "prefill")
    return [prompt for prompt in map(_prompt, cases) if _within(prompt, bundle.manifest.limits)]


def _within(prompt: Prompt, limits: Limits) -> bool:
    batch, length = prompt.visual_mask.shape
    sizes = (
        (batch, limits.max_batch),
        (length, limits.max_context),
        (int(prompt.visual_mask.sum(axis=1).max()), limits.max_visual_tokens),
    )
    return all(limit is None or size <= limit for size, limit in sizes)


def _prompt(case: GoldenCase) -> Prompt:
    """What the host was given: no golden holds padding, so rows that are not text are visual."""
    embeds = case.inputs[INPUTS_EMBEDS]
    visual = np.zeros(embeds.shape[:2], dtype=np.bool_)
    if TEXT_INDEX in case.inputs:
        visual[:] = True
        for row, places in enumerate(case.inputs[TEXT_INDEX]):
            visual[row, places[places >= 0]] = False
    elif VISUAL_START in case.inputs:
        visual[:, int(case.inputs[VISUAL_START]) : int(case.inputs[VISUAL_END])] = True
    return Prompt(embeds, case.inputs[POSITION_IDS], visual, case.outputs[LOGITS])


def _in_two(session: Session, prompt: Prompt) -> npt.NDArray[np.float32]:
    visual = np.flatnonzero(prompt.visual_mask[0])
    cut = int(visual[len(visual) // 2]) if visual.size > 1 else prompt.visual_mask.shape[1] // 2
    _, state = session.prefill(*prompt.rows(0, cut))
    return session.prefill(*prompt.rows(cut, None), state=state)[0]


def _off(golden: Golden, expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> Deviation:
    return deviation(golden, {LOGITS: expected}, {LOGITS: found})


def _batch_row(prompt: Prompt, row: int) -> Prompt:
    one = slice(row, row + 1)
    return Prompt(
        prompt.inputs_embeds[one],
        prompt.position_ids[..., one, :],
        prompt.visual_mask[one],
        prompt.logits[one],
    )


def _left(array: npt.NDArray[Any], length: int, axis: int) -> npt.NDArray[Any]:
    """Zeros in front, along `axis`, up to `length`."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (length - array.shape[axis], 0)
    return np.pad(array, widths)
