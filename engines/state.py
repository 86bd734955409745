"""What a session remembers between calls: the KV cache and the context it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Cache(Protocol):
    """Keys and values of every layer, wherever the backend keeps them."""

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values held."""
        ...


@dataclass(frozen=True)
class State:
    """The context so far, of the rows of one batch; returned by a call and handed to the next.

    `attention_mask` [B,P] int64 covers the whole context in order, 0 = padding. `visual_tokens`
    [B] counts the visual tokens of each row. `graph` names the graph that made the cache: no
    other may continue it.
    """

    cache: Cache
    attention_mask: npt.NDArray[np.int64]
    visual_tokens: npt.NDArray[np.int64]
    graph: str

    @property
    def batch(self) -> int:
        return int(self.attention_mask.shape[0])

    @property
    def length(self) -> int:
        """Positions in the context, padding included."""
        return int(self.attention_mask.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of KV cache held."""
        return self.cache.nbytes
