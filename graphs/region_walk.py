"""Walking the layers so that inside a region only text rows flow (DESIGN §2, §5).

What the lowerings `fused` and `elided` share; they differ in what a `proxy` layer keeps of the
visual rows and how its queries read it, which a `ProxyLayer` writes.

What holds, layer by layer:
1. Where visual rows are read later, a region carries them as they entered it; passing a planned
   layer adds the constant µ_o + µ_down, so no node touches them until a frozen or dense layer does.
2. A `proxy` layer reads nothing of them. A `frozen` layer computes their k and v from entry +
   the sum so far.
3. Behind the last layer that reads them they are gone. That layer, when dense, runs its queries,
   output projection and MLP on text rows and the asked row, where that is visual, only.
4. The last layer runs its queries on the asked row only. Where that row is visual, its hidden
   state is entry + the sum.
5. Dense layers before the last reader keep their exported nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from p2p_export.graphs.decoder_parts import DecoderParts, LayerParts
from p2p_export.graphs.emit import Emitter
from p2p_export.graphs.planned_layer import KEY_VALUE, LayerWriter
from p2p_export.graphs.rows import Rows
from p2p_export.plan import Mode
from p2p_export.proxies import ProxySet


class ProxyLayer(Protocol):
    """Writes the attention of `proxy` layers; `normed` are text rows behind the layer's norm."""

    def cache(self, layer: LayerParts, normed: gs.Tensor) -> None:
        """Put behind the past what this call adds to the layer's cache."""
        ...

    def attend_text(self, layer: LayerParts, normed: gs.Tensor) -> gs.Tensor:
        """Attention of the text rows, projected, [B,T,D]."""
        ...

    def attend_asked(self, layer: LayerParts, normed: gs.Tensor) -> gs.Tensor:
        """Attention of the asked row alone, projected, [B,1,D]."""
        ...


class RegionWalk:
    """Walks the layers. The hidden state is either `full` [B,S,D] or split into its streams."""

    def __init__(
        self,
        graph: gs.Graph,
        decoder: DecoderParts,
        modes: Mapping[int, Mode],
        proxies: ProxySet,
        *,
        emitter: Emitter,
        rows: Rows,
        write: LayerWriter,
        proxy_layer: ProxyLayer,
    ) -> None:
        self._graph = graph
        self._decoder = decoder
        self._modes = modes
        self._proxies = proxies
        self._e = emitter
        self._rows = rows
        self._write = write
        self._proxy_layer = proxy_layer
        self._last = len(decoder.layers) - 1
        readers = [i for i in range(self._last + 1) if modes.get(i, "dense") != "proxy"]
        self._last_reader = max(readers, default=-1)

        self._full: gs.Tensor | None = decoder.inputs_embeds
        self._text: gs.Tensor | None = None
        self._visual: gs.Tensor | None = None  # as it entered the region
        self._asked: gs.Tensor | None = None  # the asked row as it entered, where it is visual
        self._offset: npt.NDArray[np.float64] | None = None  # what the region adds to both
        self._region_first = 0

    def run(self) -> None:
        hidden: gs.Tensor | None = None
        for layer in self._decoder.layers:
            mode = self._modes.get(layer.index, "dense")
            with self._e.scope(f"layers.{layer.index}"):
                if mode != "dense":
                    hidden = self._planned(layer, mode)
                elif layer.index == self._last_reader < self._last:
                    self._last_dense_reader(layer)
                else:
                    hidden = self._kept(layer)
        exit_tensor = self._decoder.layers[-1].exit
        if hidden is not None and hidden is not exit_tensor:
            replace_input(list(exit_tensor.outputs), exit_tensor, hidden)
        self._graph.inputs += self._rows.inputs

    def _kept(self, layer: LayerParts) -> gs.Tensor:
        """A dense layer with all its rows: the exported nodes, on the merged hidden state."""
        full = self._merged()
        if full is not layer.entry:
            replace_input(layer.nodes, layer.entry, full)
        self._full = layer.exit
        return layer.exit

    def _last_dense_reader(self, layer: LayerParts) -> None:
        full = self._merged()
        width = self._decoder.hidden_size
        rows, write, e = self._rows, self._write, self._e
        normed = write.input_norm(layer, full)
        write.cache(layer, write.linear(layer, "k", normed), write.linear(layer, "v", normed))
        read = e.concat([rows.text_of(full, width), rows.visual_asked_of(full)], axis=1)
        queries = e.concat([rows.text_of(normed, width), rows.visual_asked_of(normed)], axis=1)
        mixed = write.attention(layer, queries, rows.text_and_asked_queries)
        hidden = write.mlp(layer, e.add(read, mixed))
        self._full, self._visual, self._offset = None, None, None
        self._text = e.slice(hidden, 0, rows.text_rows, axis=1)
        self._asked = e.slice(hidden, -1, None, axis=1)  # read only where that row is visual
        self._region_first = layer.index + 1

    def _planned(self, layer: LayerParts, mode: Mode) -> gs.Tensor | None:
        self._split(layer)
        assert self._text is not None
        rows, write, e = self._rows, self._write, self._e
        width = self._decoder.hidden_size
        normed = write.input_norm(layer, self._text)
        if mode == "proxy":
            self._proxy_layer.cache(layer, normed)
        else:
            self._cache_frozen(layer, normed)
        self._pass_visual(layer)
        if layer.index >= self._last_reader:
            self._visual = None
        if layer.index == self._last:
            residual = rows.asked_of_text(self._text, width)
            query = rows.asked_of_text(normed, width)
            if mode == "proxy":
                mixed = self._proxy_layer.attend_asked(layer, query)
            else:
                mixed = write.attention(layer, query, rows.asked_queries)
            text = write.mlp(layer, e.add(residual, mixed))
            return e.op(
                "Where",
                rows.asked_is_visual,
                self._moved(self._asked),
                text,
                dtype=self._decoder.dtype,
            )
        if mode == "proxy":
            mixed = self._proxy_layer.attend_text(layer, normed)
        else:
            mixed = write.attention(layer, normed, rows.text_queries)
        self._text = write.mlp(layer, e.add(self._text, mixed))
        return None

    def _cache_frozen(self, layer: LayerParts, normed: gs.Tensor) -> None:
        """Keys and values of all rows: visual ones from where the region has moved them to."""
        rows, write = self._rows, self._write
        normed_visual = write.input_norm(layer, self._moved(self._visual))
        merged = [
            rows.merge(
                write.linear(layer, site, normed),
                write.linear(layer, site, normed_visual),
                layer.linears[site].out_features,
            )
            for site in KEY_VALUE
        ]
        write.cache(layer, *merged)

    def _split(self, layer: LayerParts) -> None:
        """Part the full hidden state into its streams, where a region begins."""
        if self._full is None:
            return
        full, width = self._full, self._decoder.hidden_size
        self._text = self._rows.text_of(full, width)
        self._asked = self._rows.asked_of(full)
        read_later = layer.index <= self._last_reader
        self._visual = self._rows.visual_of(full, width) if read_later else None
        self._full, self._offset, self._region_first = None, None, layer.index

    def _merged(self) -> gs.Tensor:
        """The full hidden state, in sequence order."""
        if self._full is None:
            assert self._text is not None
            width = self._decoder.hidden_size
            self._full = self._rows.merge(self._text, self._moved(self._visual), width)
        return self._full

    def _pass_visual(self, layer: LayerParts) -> None:
        """Passing a planned layer adds µ_o + µ_down to a visual row."""
        o, down = (
            self._proxies.vector(layer.index, "o").astype(np.float64),
            self._proxies.vector(layer.index, "down").astype(np.float64),
        )
        self._offset = o + down + (0.0 if self._offset is None else self._offset)
        self._offset_through = layer.index

    def _moved(self, entry: gs.Tensor | None) -> gs.Tensor:
        """Visual rows now: as they entered the region, plus what it added so far."""
        assert entry is not None
        if self._offset is None:
            return entry
        name = f"layers.{self._region_first}-{self._offset_through}.residual.image"
        return self._e.add(entry, self._e.vector(name, self._offset))


def replace_input(
    nodes: list[gs.Node] | tuple[gs.Node, ...], old: gs.Tensor, new: gs.Tensor
) -> None:
    """Let `nodes` read `new` where they read `old`."""
    for node in nodes:
        if any(tensor is old for tensor in node.inputs):
            node.inputs = [new if tensor is old else tensor for tensor in node.inputs]
