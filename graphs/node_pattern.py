"""Walking a graph against the arrows, to see whether nodes form a pattern."""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs


def produced_by(tensor: gs.Tensor, op: str) -> gs.Node | None:
    """The node that makes `tensor`, when it is an `op`."""
    return tensor.inputs[0] if tensor.inputs and tensor.inputs[0].op == op else None


def read_by(tensor: gs.Tensor, op: str) -> gs.Node | None:
    """The node that reads `tensor`, when it is an `op` and the only reader."""
    readers = tensor.outputs
    return readers[0] if len(readers) == 1 and readers[0].op == op else None


def only_other(node: gs.Node, one: gs.Tensor | None) -> gs.Tensor | None:
    """The other of two inputs."""
    others: list[gs.Tensor] = [tensor for tensor in node.inputs if tensor is not one]
    return others[0] if len(node.inputs) == 2 and len(others) == 1 else None


def attribute_is(node: gs.Node, name: str, value: Any) -> bool:
    """Lists and tuples are the same here."""
    found = node.attrs.get(name)
    return bool((list(found) if isinstance(found, tuple | list) else found) == value)
