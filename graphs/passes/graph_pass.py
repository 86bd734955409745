"""What a pass is: what it requires of a graph, what it changes, what it ensures afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod

import onnx_graphsurgeon as gs


class GraphPass(ABC):
    """One rewriting of a graph, in place.

    `requires` and `ensures` raise `RewriteError` with the node, the layer and the reason; a graph
    that `requires` refuses is as it was. Subclasses number their rules in their docstring.
    """

    def __call__(self, graph: gs.Graph) -> bool:
        """Run the pass; returns whether it changed anything."""
        self.requires(graph)
        modified = self.call(graph)
        if modified:
            self.ensures(graph)
        return modified

    def requires(self, graph: gs.Graph) -> None:  # noqa: B027 - most passes take any graph
        """Raise `RewriteError` unless the pass can take `graph`."""

    @abstractmethod
    def call(self, graph: gs.Graph) -> bool:
        """Change `graph`; returns whether there was anything to change."""

    def ensures(self, graph: gs.Graph) -> None:  # noqa: B027
        """Raise `RewriteError` unless the change is all there."""
