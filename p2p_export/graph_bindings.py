"""Inputs and outputs of an ONNX graph, as the manifest lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2p_export.bindings import role_of
from p2p_export.errors import InputError
from p2p_export.manifest import Binding, GraphBindings


def read_bindings(path: Path) -> GraphBindings:
    """Names, NumPy dtypes and shapes of the graph at `path`; weights are not read."""
    graph = load_graph(path).graph
    stored = {tensor.name for tensor in graph.initializer}
    return GraphBindings(
        tuple(_binding(value) for value in graph.input if value.name not in stored),
        tuple(_binding(value) for value in graph.output),
    )


def load_graph(path: Path) -> Any:
    """The `onnx.ModelProto` at `path`, without external weights; `InputError` when it is none."""
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except FileNotFoundError:
        raise InputError(f"no graph at {path}; check the path") from None
    except Exception as error:  # noqa: BLE001 - protobuf raises its own kinds, none documented
        raise InputError(f"{path} is not an ONNX model: {type(error).__name__}") from None
    if not model.graph.node:
        raise InputError(f"{path} is not an ONNX model: it holds no node")
    return model


def _binding(value: Any) -> Binding:
    import onnx

    tensor = value.type.tensor_type
    return Binding(
        name=value.name,
        dtype=onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name,
        shape=tuple(
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param
            for dim in tensor.shape.dim
        ),
        role=role_of(value.name),
    )
