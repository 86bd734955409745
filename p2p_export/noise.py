"""How far a correct decoder may lie from the golden answers: the noise floor, measured.

The floor is the largest difference, over all goldens, between PyTorch's float32 answers and the
same PyTorch decoder computing in another dtype: float64 for a float32 graph (what is left is
float32's own rounding), the graph's dtype otherwise (what is left is that dtype's rounding). No
graph takes part, so a wrong graph cannot loosen its own limits. It is measured for the logits and
for the cache apart, never below one unit in the last place of the largest value.

`atol` is FACTOR times the larger of the two and `rtol` FACTOR units in the last place. A graph adds
the same numbers in another order, so its differences are of the floor's size: FACTOR leaves room
for that order and for other CPUs and threads, and stays orders of magnitude below what a wrong
row, proxy or layer does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.engines.goldens import ReferenceCall
from p2p_export.manifest import Golden

FACTOR = 8.0
# The dtype whose rounding is measured, and that of the graph, by precision.
OTHER_DTYPE = {"fp32": "float64", "fp16": "float16"}
GRAPH_DTYPE: dict[str, np.dtype[Any]] = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16)}


def golden_tolerances(
    calls: Sequence[ReferenceCall], again: Sequence[ReferenceCall], *, precision: str, source: str
) -> Golden:
    """Tolerances from the goldens and their rerun in `OTHER_DTYPE[precision]`."""
    unit = float(np.finfo(GRAPH_DTYPE[precision]).eps)
    pairs = list(zip(calls, again, strict=True))
    logits = _floor(((one.logits, other.logits) for one, other in pairs), unit)
    cache = _floor(
        (
            (mine, theirs)
            for one, other in pairs
            for mine, theirs in zip(one.cache_after, other.cache_after, strict=True)
        ),
        unit,
    )
    return Golden(
        atol=FACTOR * max(logits, cache),
        rtol=FACTOR * unit,
        source=source,
        noise_floor={"logits": logits, "cache": cache, "factor": FACTOR},
    )


def _floor(pairs: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]], unit: float) -> float:
    floor = 0.0
    for one, other in pairs:
        wide = one.astype(np.float64)
        floor = max(floor, float(np.abs(wide - other).max()), unit * float(np.abs(wide).max()))
    return floor
