"""torch module on the meta device -> ONNX graph without weights.

torch's exporter needs shapes, not values: exported from the meta device, a graph of any size takes
seconds and no memory, and its initializers keep their parameter names and [out,in] layout. The
weights are attached afterwards (`weights.attach_weights`).
"""

from __future__ import annotations

import ast
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import onnxscript.optimizer
import torch
from torch import nn

OPSET = 18
NAME_SCOPES = "pkg.torch.onnx.name_scopes"


def export_from_meta(
    module: nn.Module,
    args: tuple[Any, ...],
    *,
    input_names: Sequence[str],
    output_names: Sequence[str],
    dynamic_shapes: Any,
) -> ir.Model:
    """Export `module` (parameters, buffers and `args` on the meta device) at opset 18.

    Every node is named `{module path}/{op}_{number}`: GraphSurgeon drops metadata, so the scope
    lives in the name. Parameters and buffers are initializers without a value.
    """
    with _quiet():
        program = torch.onnx.export(
            module,
            args,
            input_names=list(input_names),
            output_names=list(output_names),
            dynamic_shapes=dynamic_shapes,
            dynamo=True,
            optimize=False,
            verbose=False,
            opset_version=OPSET,
        )
        assert program is not None
        model = program.model
        for initializer in model.graph.initializers.values():
            initializer.const_value = None  # a meta tensor; without one, nothing folds it
        onnxscript.optimizer.optimize(model, onnx_shape_inference=False)
    model.producer_name, model.producer_version = "p2p-export", None
    for number, node in enumerate(model.graph):
        node.name = f"{_scope(node)}/{node.op_type}_{number}"
        node.metadata_props.clear()
        node.doc_string = None
    for value in [*model.graph.inputs, *model.graph.outputs]:
        value.metadata_props.clear()
    return model


def _scope(node: ir.Node) -> str:
    """Path of the innermost module a node came from, empty for the outermost one."""
    scopes = ast.literal_eval(node.metadata_props.get(NAME_SCOPES, "[]"))
    inner = scopes[-2] if len(scopes) > 1 else ""
    return "" if str(inner).startswith("_empty_nn_module") else str(inner)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns about torchvision, unset initializers and renamed axes; all expected."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
