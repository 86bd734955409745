"""How far a correct decoder may lie from the golden answers: the noise floor, measured.

The floor is the largest difference, over all goldens, between PyTorch's float32 answers and the
same PyTorch model computing in another dtype: float64 for a float32 graph (what is left is
float32's own rounding), the graph's dtype otherwise (what is left is that dtype's rounding). No
graph takes part, so a wrong graph cannot loosen its own limits. It is measured apart for logits,
for the cache and for the rows of an image, and is never below one unit in the last place of the
largest value.

`atol` is FACTOR times the larger of the first two, `rtol` FACTOR units in the last place; logits
and image rows have an `atol` of their own, FACTOR times their floor. A graph adds the same numbers
in another order, so its differences are of the floor's size (measured: 0.1 to 1.9 floors): FACTOR
leaves room for that order and for other CPUs and threads, and stays orders of magnitude below what
a wrong row, proxy or layer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.engines.goldens import ReferenceCall
from p2p_export.manifest import Golden

FACTOR = 8.0
# The dtype whose rounding is measured, and that of the graph, by precision.
OTHER_DTYPE = {"fp32": "float64", "fp16": "float16"}
GRAPH_DTYPE: dict[str, np.dtype[Any]] = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
}

FloatArray = npt.NDArray[Any]


def decoder_golden(
    calls: Sequence[ReferenceCall], again: Sequence[ReferenceCall], *, precision: str, source: str
) -> Golden:
    """Tolerances from the goldens and their rerun in `OTHER_DTYPE[precision]`."""
    pairs = list(zip(calls, again, strict=True))
    logits = max(difference(one.logits, other.logits, precision) for one, other in pairs)
    cache = max(
        difference(mine, theirs, precision)
        for one, other in pairs
        for mine, theirs in zip(one.cache_after, other.cache_after, strict=True)
    )
    return Golden(
        atol=FACTOR * max(logits, cache),
        rtol=FACTOR * _unit(precision),
        source=source,
        noise_floor={"logits": logits, "cache": cache, "factor": FACTOR},
    )


def with_vision(golden: Golden, vision: float) -> Golden:
    """The same, with the noise of the vision part beside it."""
    return replace(golden, noise_floor={**golden.noise_floor, "image_features": vision})


def difference(one: FloatArray, other: FloatArray, precision: str) -> float:
    """The largest difference, and at least one unit in the last place of the largest value."""
    wide = one.astype(np.float64)
    return max(float(np.abs(wide - other).max()), _unit(precision) * float(np.abs(wide).max()))


def _unit(precision: str) -> float:
    return float(np.finfo(GRAPH_DTYPE[precision]).eps)
