"""Making a deep decoder graph out of a shallow one.

The layers of a decoder differ in their weights alone, and torch's exporter pays seconds for each of
them. So it sees two layers, an ordinary one and the last, and the ordinary one is repeated here,
node by node, until the decoder has its depth.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from p2p_export.bindings import INPUTS_EMBEDS, past_name, present_name

PROTOTYPE_LAYERS = 2
PARTS = ("key", "value")


def stack_layers(model: ir.Model, count: int) -> None:
    """Turn the two-layer decoder `model` into one of `count` >= 2 layers, in place.

    Of layer 0 only what depends on its input, cache or weights is repeated; the rest (RoPE, mask,
    shapes) is shared. Layer 1 becomes layer `count` - 1.
    """
    graph = model.graph
    if count == PROTOTYPE_LAYERS:
        return
    nodes = list(graph)
    first = [node for node in nodes if _in_layer(node.name, 0)]
    inputs = {str(value.name): value for value in graph.inputs}
    entry = inputs[INPUTS_EMBEDS]
    exit_value = [n for n in first if n.op_type == "Add" and _scope(n) == "layers.0"][-1].outputs[0]
    own = {entry, *(inputs[past_name(0, part)] for part in PARTS)}
    own |= {v for name, v in graph.initializers.items() if name.startswith("layers.0.")}
    repeated = _dependents(first, own)
    last_users = [use.node for use in exit_value.uses()]

    _rename_layer(model, 1, count - 1)
    previous, anchor = exit_value, repeated[-1]
    for index in range(1, count - 1):
        copies = _Copies(model, index, {entry: previous})
        for node in repeated:
            anchor = copies.add(node, after=anchor)
        previous = copies.of[exit_value]
    for node in last_users:
        for place, value in enumerate(node.inputs):
            if value is exit_value and not _in_layer(node.name, 0):
                node.replace_input_with(place, previous)
    _order_bindings(model, count)


class _Copies:
    """The copy of layer 0 that becomes layer `index`."""

    def __init__(self, model: ir.Model, index: int, of: dict[ir.Value, ir.Value]) -> None:
        self.of = of
        self._graph = model.graph
        self._index = index
        for name, value in list(self._graph.initializers.items()):
            if name.startswith("layers.0."):
                copy = self._value(value)
                self._graph.initializers[str(copy.name)] = copy
                of[value] = copy
        for value in list(self._graph.inputs):
            for part in PARTS:
                if value.name == past_name(0, part):
                    of[value] = self._value(value, past_name(index, part))
                    self._graph.inputs.append(of[value])

    def add(self, node: ir.Node, *, after: ir.Node) -> ir.Node:
        """Copy `node` behind `after`, reading what was copied before it."""
        copy = ir.Node(
            node.domain,
            node.op_type,
            [self.of.get(value, value) if value is not None else None for value in node.inputs],
            list(node.attributes.values()),
            num_outputs=len(node.outputs),
            name=_renamed(str(node.name), 0, self._index),
        )
        for original, output in zip(node.outputs, copy.outputs, strict=True):
            output.name = f"{copy.name}.{original.name}"
            output.shape, output.type = original.shape, original.type
            for part in PARTS:
                if original.name == present_name(0, part):
                    output.name = present_name(self._index, part)
                    self._graph.outputs.append(output)
            self.of[original] = output
        self._graph.insert_after(after, copy)
        return copy

    def _value(self, value: ir.Value, name: str | None = None) -> ir.Value:
        return ir.Value(
            name=name or _renamed(str(value.name), 0, self._index),
            shape=value.shape,
            type=value.type,
        )


def _dependents(nodes: Iterable[ir.Node], own: set[ir.Value]) -> list[ir.Node]:
    reached, found = set(own), []
    for node in nodes:
        if any(value in reached for value in node.inputs if value is not None):
            found.append(node)
            reached.update(node.outputs)
    return found


def _rename_layer(model: ir.Model, old: int, new: int) -> None:
    graph = model.graph
    for node in graph:
        if _in_layer(node.name, old):
            node.name = _renamed(str(node.name), old, new)
    for name, value in list(graph.initializers.items()):
        if name.startswith(f"layers.{old}."):
            del graph.initializers[name]
            value.name = _renamed(name, old, new)
            graph.initializers[value.name] = value
    for part in PARTS:
        for value in [*graph.inputs, *graph.outputs]:
            if value.name == past_name(old, part):
                value.name = past_name(new, part)
            elif value.name == present_name(old, part):
                value.name = present_name(new, part)


def _order_bindings(model: ir.Model, count: int) -> None:
    """Cache inputs and outputs in layer order, behind the others."""
    for values, name_of in (
        (model.graph.inputs, past_name),
        (model.graph.outputs, present_name),
    ):
        order = {name_of(i, part): (i, part) for i in range(count) for part in PARTS}
        found = list(values)
        others = [value for value in found if value.name not in order]
        caches = sorted((v for v in found if v.name in order), key=lambda v: order[str(v.name)])
        values.clear()
        values.extend([*others, *caches])


def _scope(node: ir.Node) -> str:
    return str(node.name).rpartition("/")[0]


def _in_layer(name: str | None, index: int) -> bool:
    return str(name).startswith((f"layers.{index}/", f"layers.{index}."))


def _renamed(name: str, old: int, new: int) -> str:
    return f"layers.{new}" + name.removeprefix(f"layers.{old}")
