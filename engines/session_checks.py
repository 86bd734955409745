"""Checks of the session: what must not depend on what was asked before, how a prompt is cut,
what is beside it in the batch, or where the caller stands."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.bindings import INPUTS_EMBEDS, LOGITS, POSITION_IDS, TEXT_INDEX
from p2p_export.bundle import Bundle
from p2p_export.engines.answer_checks import deviation
from p2p_export.engines.check import Check
from p2p_export.engines.goldens import GoldenCase, load_goldens
from p2p_export.engines.onnxruntime_backend import OnnxRuntimeOptions
from p2p_export.engines.session import Session, start
from p2p_export.manifest import DECODER_FILE

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


def repeated(bundle: Bundle) -> Iterator[Check]:
    """A, then B, then A again: the same answer, bit by bit."""
    session, prompts = _session(bundle), _prompts(bundle)
    first = [session.prefill(*prompt.rows())[0] for prompt in prompts]
    again = session.prefill(*prompts[0].rows())[0]
    same = np.array_equal(first[0], again)
    yield Check("A, B, A", same, "the same answer" if same else "another answer the second time")


def chunked(bundle: Bundle) -> Iterator[Check]:
    """A prompt in two chunks, cut inside its image where it has one."""
    session = _session(bundle)
    worst = max(
        (_off(bundle, prompt.logits, _in_two(session, prompt)) for prompt in _prompts(bundle)),
        key=lambda d: d.share,
    )
    yield Check("prefill in chunks", worst.share <= 1.0, str(worst))


def padded(bundle: Bundle) -> Iterator[Check]:
    """Prompts of unequal length in one batch, padded on the left."""
    session = _session(bundle)
    limit = bundle.manifest.limits.max_batch
    singles = [
        _batch_row(prompt, row) for prompt in _prompts(bundle) for row in range(len(prompt.logits))
    ]
    batch = singles[:limit] if limit is not None else singles
    length = max(single.visual_mask.shape[1] for single in batch)
    mask = np.concatenate([_left(np.ones_like(s.visual_mask, np.int64), length, 1) for s in batch])
    logits, _ = session.prefill(
        np.concatenate([_left(s.inputs_embeds, length, 1) for s in batch]),
        np.concatenate([_left(s.position_ids, length, -1) for s in batch], axis=-2),
        np.concatenate([_left(s.visual_mask, length, 1) for s in batch]),
        mask,
    )
    worst = _off(bundle, np.concatenate([single.logits for single in batch]), logits)
    yield Check("padded batch", worst.share <= 1.0, f"{len(batch)} rows; {worst}")


def elsewhere(bundle: Bundle) -> Iterator[Check]:
    """Another process, in another working folder."""
    prompt = _prompts(bundle)[0]
    with tempfile.TemporaryDirectory() as folder:
        arrays = f"{folder}/prompt.npz"
        np.savez(arrays, *prompt.rows())
        ran = subprocess.run(
            [sys.executable, "-c", ELSEWHERE, str(bundle.folder), arrays],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=ELSEWHERE_SECONDS,
            check=False,
        )
    if ran.returncode != 0:
        reason = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        yield Check("another working folder", False, reason)
        return
    worst = _off(bundle, prompt.logits, np.array(json.loads(ran.stdout), dtype=np.float32))
    yield Check("another working folder", worst.share <= 1.0, str(worst))


def _session(bundle: Bundle) -> Session:
    return start(bundle, OnnxRuntimeOptions())


def _prompts(bundle: Bundle) -> list[Prompt]:
    cases = load_goldens(bundle.folder, DECODER_FILE, "prefill")
    limits = bundle.manifest.limits
    return [
        prompt
        for prompt in map(_prompt, cases)
        if limits.max_batch is None or len(prompt.logits) <= limits.max_batch
    ]


def _prompt(case: GoldenCase) -> Prompt:
    """What the host was given: no golden holds padding, so rows that are not text are visual."""
    embeds = case.inputs[INPUTS_EMBEDS]
    visual = np.zeros(embeds.shape[:2], dtype=np.bool_)
    text = case.inputs.get(TEXT_INDEX)
    if text is not None:
        visual[:] = True
        for row, places in enumerate(text):
            visual[row, places[places >= 0]] = False
    return Prompt(embeds, case.inputs[POSITION_IDS], visual, case.outputs[LOGITS])


def _in_two(session: Session, prompt: Prompt) -> npt.NDArray[np.float32]:
    visual = np.flatnonzero(prompt.visual_mask[0])
    cut = int(visual[len(visual) // 2]) if visual.size > 1 else prompt.visual_mask.shape[1] // 2
    _, state = session.prefill(*prompt.rows(0, cut))
    return session.prefill(*prompt.rows(cut, None), state=state)[0]


def _off(bundle: Bundle, expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> Any:
    return deviation(bundle.manifest.golden, {LOGITS: expected}, {LOGITS: found})


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
