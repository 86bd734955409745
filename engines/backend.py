"""What a session needs of a runtime: run a decoder graph, keep its cache where it likes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from p2p_export.engines.state import Cache

Arrays = Mapping[str, npt.NDArray[Any]]


class DecoderBackend(Protocol):
    """One decoder graph, ready to run."""

    @property
    def input_names(self) -> frozenset[str]:
        """Inputs of the graph, cache included."""
        ...

    @property
    def embeds_dtype(self) -> np.dtype[Any]:
        """What `inputs_embeds` must be."""
        ...

    def empty_cache(self, batch: int) -> Cache:
        """The cache of a context without tokens."""
        ...

    def run(self, arrays: Arrays, cache: Cache) -> tuple[npt.NDArray[np.float32], Cache]:
        """Logits [B,vocab] and the cache with this call's rows behind `cache`."""
        ...
