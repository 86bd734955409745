"""Nodes no output depends on go; the others keep an order they can run in."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime

from p2p_export.graphs.live_nodes import keep_live_nodes


def tangled() -> gs.Graph:
    """y = (x + x)·(x + x) and z = −(x + x), written backwards, beside two nodes nobody reads."""
    x, unread = (gs.Variable(name, np.float32, [2]) for name in ("x", "unread"))
    twice, dead, deader = (gs.Variable(name, np.float32) for name in ("twice", "dead", "deader"))
    y, z = (gs.Variable(name, np.float32, [2]) for name in ("y", "z"))
    nodes = [
        gs.Node("Abs", "deader", {}, [dead], [deader]),
        gs.Node("Mul", "product", {}, [twice, twice], [y]),
        gs.Node("Neg", "negation", {}, [twice], [z]),
        gs.Node("Exp", "dead", {}, [twice], [dead]),
        gs.Node("Add", "sum", {}, [x, x], [twice]),
    ]
    return gs.Graph(nodes, inputs=[x, unread], outputs=[y, z], opset=18)


def test_the_graph_runs_and_holds_what_its_outputs_need() -> None:
    graph = tangled()
    keep_live_nodes(graph)
    assert [node.name for node in graph.nodes] == ["sum", "product", "negation"]
    assert [tensor.name for tensor in graph.inputs] == ["x", "unread"]
    model = gs.export_onnx(graph)
    model.ir_version = 10
    onnx.checker.check_model(model)
    x = np.array([1.5, -2.0], np.float32)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    y, z = session.run(None, {"x": x, "unread": x})
    np.testing.assert_array_equal(y, 4 * x * x)
    np.testing.assert_array_equal(z, -2 * x)


def test_what_is_kept_knows_no_dropped_reader() -> None:
    graph = tangled()
    keep_live_nodes(graph)
    twice = graph.tensors()["twice"]
    assert {node.name for node in twice.outputs} == {"product", "negation"}
