"""GraphSurgeon at the edges: protobuf in, protobuf out, without its chatter and its losses."""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.logger import G_LOGGER


def import_graph(model: onnx.ModelProto) -> gs.Graph:
    """The graph of `model`; external weights stay where they are."""
    with G_LOGGER.suppress(G_LOGGER.ERROR):  # it warns of every bfloat16 tensor, and keeps them all
        return gs.import_onnx(model)


def export_graph(graph: gs.Graph, origin: onnx.ModelProto) -> onnx.ModelProto:
    """`graph` with the producer and metadata of the model that it was imported from."""
    with G_LOGGER.suppress(G_LOGGER.ERROR):
        model: onnx.ModelProto = gs.export_onnx(graph)
    model.producer_name = origin.producer_name
    del model.metadata_props[:]
    model.metadata_props.extend(origin.metadata_props)
    return model
