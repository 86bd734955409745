"""Keeping the nodes that a graph's outputs depend on, in an order they can run in."""

from __future__ import annotations

import onnx_graphsurgeon as gs


def keep_live_nodes(graph: gs.Graph) -> None:
    """Drop and detach every node no output depends on; put each behind those it reads from.

    One walk over the graph, where GraphSurgeon's `cleanup` and `toposort` take several: half the
    time of a rewrite was theirs. Graph inputs stay, read or not. Nodes hold no subgraphs here.
    """
    ordered: list[gs.Node] = []
    entered: set[int] = set()
    done: set[int] = set()
    waiting = [node for output in reversed(graph.outputs) for node in output.inputs]
    while waiting:
        node = waiting[-1]
        if id(node) in entered:
            waiting.pop()
            if id(node) not in done:
                done.add(id(node))
                ordered.append(node)
            continue
        entered.add(id(node))
        waiting.extend(
            producer
            for tensor in reversed(node.inputs)
            for producer in tensor.inputs
            if id(producer) not in entered
        )
    for node in graph.nodes:
        if id(node) not in done:
            node.inputs.clear()
            node.outputs.clear()
    graph.nodes = ordered
