"""Checks of what the graphs answer, against the goldens that PyTorch gave at export."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.bindings import LOGITS
from p2p_export.bundle import Bundle
from p2p_export.engines.check import Check
from p2p_export.engines.goldens import (
    PHASES,
    VISION,
    GoldenCase,
    Phase,
    golden_files,
    load_goldens,
)
from p2p_export.engines.onnxruntime_backend import OnnxRuntimeOptions, run_graph, start_session
from p2p_export.manifest import DECODER_FILE, DENSE_FILE, VISION_FILE, Golden


@dataclass(frozen=True)
class Deviation:
    """The worst output of some runs: its largest error, and that error over what is allowed."""

    output: str
    error: float
    share: float

    def __str__(self) -> str:
        if not np.isfinite(self.error):
            return f"{self.output} is missing, of another shape, or not finite"
        allowed = f"{self.share:.0%} of" if self.share < 10 else f"{self.share:.2g} times"
        return f"{self.output} off by {self.error:.2g}, {allowed} what is allowed"


def goldens(bundle: Bundle) -> Iterator[Check]:
    """The pruned decoder, as ONNX Runtime optimises it."""
    yield from _against_goldens(bundle, DECODER_FILE, OnnxRuntimeOptions(), "")


def optimizations(bundle: Bundle) -> Iterator[Check]:
    """The pruned decoder with the optimisations of ONNX Runtime off."""
    yield from _against_goldens(
        bundle, DECODER_FILE, OnnxRuntimeOptions(optimize=False), ", optimisations off"
    )


def dense_goldens(bundle: Bundle) -> Iterator[Check]:
    """The dense decoder, where the bundle holds it."""
    if bundle.manifest.has_dense:
        yield from _against_goldens(bundle, DENSE_FILE, OnnxRuntimeOptions(), "")


def vision_golden(bundle: Bundle) -> Iterator[Check]:
    """The vision part, where the bundle holds it."""
    if VISION_FILE not in bundle.manifest.graphs:
        return
    inputs, _ = golden_files(VISION_FILE, VISION)
    if bundle.has(inputs):
        yield from _against_goldens(bundle, VISION_FILE, OnnxRuntimeOptions(), "", (VISION,))
    else:
        unknown = "the checkpoint had no processor to prepare a picture with"
        yield Check(f"goldens {VISION_FILE}", True, unknown, skipped=True)


def deviation(
    golden: Golden, expected: dict[str, npt.NDArray[Any]], found: dict[str, npt.NDArray[Any]]
) -> Deviation:
    """The output that is worst off. Missing, misshapen or not finite is infinitely off."""
    worst = Deviation(LOGITS, 0.0, 0.0)
    for name, wanted in expected.items():
        got = found.get(name)
        if got is None or got.shape != wanted.shape or not np.isfinite(got).all():
            return Deviation(name, float("inf"), float("inf"))
        if not wanted.size:
            continue
        wide = wanted.astype(np.float64)
        error = np.abs(got.astype(np.float64) - wide)
        share = float((error / allowed(golden, name, wide)).max())
        if share > worst.share:
            worst = Deviation(name, float(error.max()), share)
    return worst


def allowed(
    golden: Golden, output: str, expected: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """How far each value may be off: `atol` + `rtol` x value, as Polygraphy is told. An output
    whose own noise floor is in the manifest (logits, image_features) has its own `atol`."""
    limit: npt.NDArray[np.float64] = golden.atol_of(output) + golden.rtol * np.abs(expected)
    return limit


def _against_goldens(
    bundle: Bundle,
    graph: str,
    options: OnnxRuntimeOptions,
    how: str,
    phases: tuple[Phase, ...] = PHASES,
) -> Iterator[Check]:
    session = start_session(bundle.path(graph), options)
    for phase in phases:
        cases = load_goldens(bundle.folder, graph, phase)
        worst = max((_deviation(bundle, session, case) for case in cases), key=lambda d: d.share)
        yield Check(
            f"goldens {graph} {phase}{how}", worst.share <= 1.0, f"{len(cases)} runs; {worst}"
        )


def _deviation(bundle: Bundle, session: Any, case: GoldenCase) -> Deviation:
    return deviation(bundle.manifest.golden, case.outputs, run_graph(session, case.inputs))
