"""Walking a graph against the arrows, to see whether nodes form a pattern."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

# What takes or names rows and axes and computes nothing.
ROW_OPS = ("Cast", "Unsqueeze", "Gather", "Slice")


def produced_by(tensor: gs.Tensor, op: str) -> gs.Node | None:
    """The node that makes `tensor`, when it is an `op`."""
    return tensor.inputs[0] if tensor.inputs and tensor.inputs[0].op == op else None


def read_by(tensor: gs.Tensor, op: str) -> gs.Node | None:
    """The node that reads `tensor`, when it is an `op` and the only reader."""
    readers = tensor.outputs
    return readers[0] if len(readers) == 1 and readers[0].op == op else None


def behind(tensor: gs.Tensor, *ops: str) -> gs.Tensor:
    """What `tensor` is made of by nodes of `ops` alone, each one's first input."""
    while tensor.inputs and tensor.inputs[0].op in ops:
        tensor = tensor.inputs[0].inputs[0]
    return tensor


def upstream(*tensors: gs.Tensor, stop: str = "") -> Iterator[gs.Node]:
    """Every node that `tensors` depend on, each once; not through nodes of the op `stop`."""
    seen: set[int] = set()
    waiting = [node for tensor in tensors for node in tensor.inputs]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if node.op != stop:
            waiting.extend(producer for tensor in node.inputs for producer in tensor.inputs)


def only_other(node: gs.Node, one: gs.Tensor | None) -> gs.Tensor | None:
    """The other of two inputs."""
    others: list[gs.Tensor] = [tensor for tensor in node.inputs if tensor is not one]
    return others[0] if len(node.inputs) == 2 and len(others) == 1 else None


def scalar_of(node: gs.Node) -> float | None:
    """The one number among a node's inputs that is a constant."""
    constants = [t for t in node.inputs if isinstance(t, gs.Constant)]
    if len(constants) != 1 or np.prod(constants[0].shape) != 1:
        return None
    return float(np.asarray(constants[0].values).reshape(-1)[0])


def attribute_is(node: gs.Node, name: str, value: Any) -> bool:
    """Lists and tuples are the same here."""
    found = node.attrs.get(name)
    return bool((list(found) if isinstance(found, tuple | list) else found) == value)
