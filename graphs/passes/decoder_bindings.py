"""Names and axes of a decoder's inputs and outputs, as every graph of ours has them."""

from __future__ import annotations

import re

import onnx_graphsurgeon as gs

from p2p_export.bindings import (
    ATTENTION_MASK,
    INPUTS_EMBEDS,
    LOGITS,
    POSITION_IDS,
    past_name,
    present_name,
)
from p2p_export.errors import RewriteError
from p2p_export.graphs.passes.graph_pass import GraphPass

# Caches as exporters of transformers models name them.
PAST = re.compile(r"past_key_values\.layers\.(\d+)\.(key|value)s")
PRESENT = re.compile(r"(?:cache|present|past_key_values)\.layers\.(\d+)\.(key|value)s(?:\.\d+)?")


class DecoderBindings(GraphPass):
    """Rename what another exporter calls otherwise (`p2p_export.bindings` is the registry).

    1. `past_key_values.layers.{i}.keys` -> `past_key_values.{i}.key`, values alike.
    2. `cache.layers.{i}.keys` -> `present.{i}.key`, values alike.
    3. Of a graph with such names, axes are called batch, sequence, past and context, and sizes that
       are digits become numbers. Other graphs are left alone.
    """

    def requires(self, graph: gs.Graph) -> None:
        """Cache inputs under one of the two names, not both."""
        named = {tensor.name for tensor in graph.inputs}
        both = [name for name in named if (new := _past(name)) is not None and new in named]
        if both:
            raise RewriteError(
                f"the graph has the inputs {both[0]} and {_past(both[0])}, which are the same "
                "cache; export the decoder again"
            )

    def call(self, graph: gs.Graph) -> bool:
        if not any(_past(tensor.name) for tensor in graph.inputs):
            return False
        for tensor in graph.inputs:
            tensor.name = _past(tensor.name) or tensor.name
            _name_axes(tensor)
        for tensor in graph.outputs:
            tensor.name = _present(tensor.name) or tensor.name
            _name_axes(tensor)
        return True

    def ensures(self, graph: gs.Graph) -> None:
        """Every cache that comes in goes out."""
        outputs = {tensor.name for tensor in graph.outputs}
        for tensor in graph.inputs:
            name = tensor.name.replace("past_key_values.", "present.")
            if name != tensor.name and name not in outputs:
                raise RewriteError(
                    f"the graph has the input {tensor.name} and no output {name}; export the "
                    "decoder with its KV cache"
                )


def _past(name: str) -> str | None:
    found = PAST.fullmatch(name)
    return None if found is None else past_name(int(found[1]), found[2])


def _present(name: str) -> str | None:
    found = PRESENT.fullmatch(name)
    return None if found is None else present_name(int(found[1]), found[2])


def _name_axes(tensor: gs.Tensor) -> None:
    shape = [int(size) if str(size).isdigit() else size for size in tensor.shape or ()]
    named = {
        INPUTS_EMBEDS: {0: "batch", 1: "sequence"},
        ATTENTION_MASK: {0: "batch", 1: "context"},
        POSITION_IDS: {len(shape) - 2: "batch", len(shape) - 1: "sequence"},
        LOGITS: {0: "batch"},
    }.get(tensor.name, {})
    if tensor.name.startswith("past_key_values."):
        named = {0: "batch", 2: "past"}
    elif tensor.name.startswith("present."):
        named = {0: "batch", 2: "context"}
    tensor.shape = [named.get(axis, size) for axis, size in enumerate(shape)]
