"""What a session remembers between calls: the KV cache and the context it belongs to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from p2p_export.engines.context import Context


class Cache(Protocol):
    """Keys and values of every layer, wherever the backend keeps them."""

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values held."""
        ...

    def with_layers_of(self, earlier: Any, layers: Collection[int]) -> Cache:
        """This cache, with `layers` as they were in `earlier`, a cache of the same kind."""
        ...


@dataclass(frozen=True)
class State:
    """The context so far, of the rows of one batch; returned by a call and handed to the next.

    `graph` names the graph that made the cache: no other may continue it.
    """

    cache: Cache
    context: Context
    graph: str

    @property
    def batch(self) -> int:
        return int(self.context.attention_mask.shape[0])

    @property
    def length(self) -> int:
        """Positions in the context, padding included."""
        return self.context.length

    @property
    def nbytes(self) -> int:
        """Bytes of KV cache held."""
        return self.cache.nbytes
