"""Module paths of a torch export, from node metadata into node names.

GraphSurgeon drops metadata, so what a node came from must stand in its name before a graph is
imported: `scope_names` therefore takes a protobuf.
"""

from __future__ import annotations

import ast
import re

import onnx

from p2p_export.errors import RewriteError

NAME_SCOPES = "pkg.torch.onnx.name_scopes"
FIRST_NORM = re.compile(r"(?:^|\.)layers\.0\.input_layernorm$")


def scope_names(model: onnx.ModelProto) -> bool:
    """Name every node of `model` `{module path}/{op}_{number}`, in place; whether any changed.

    1. A graph whose names hold the path of layer 0 already is left alone, as our exports are.
    2. Paths are counted from the module that holds `layers`; what lies elsewhere (the head) keeps
       its whole path. A node without metadata is named `/{op}_{number}`.
    3. Two modules that hold a layer 0 with an `input_layernorm` are refused: which of them is the
       text model cannot be told.
    """
    if any(node.name.startswith("layers.0.") for node in model.graph.node):
        return False
    paths = [_module_path(node) for node in model.graph.node]
    holders = {
        path[: found.start()] for path in paths if (found := FIRST_NORM.search(path)) is not None
    }
    if not holders:
        return False
    if len(holders) > 1:
        raise RewriteError(
            f"the graph holds layers of {len(holders)} decoders ({', '.join(sorted(holders))}); "
            "export the text model alone"
        )
    prefix = f"{holders.pop()}."
    for number, (node, path) in enumerate(zip(model.graph.node, paths, strict=True)):
        node.name = f"{path.removeprefix(prefix)}/{node.op_type}_{number}"
    return True


def _module_path(node: onnx.NodeProto) -> str:
    """The path of the module a node came from; its own name, the last of its scopes, left out."""
    for entry in node.metadata_props:
        if entry.key == NAME_SCOPES:
            try:
                scopes = ast.literal_eval(entry.value)
            except (SyntaxError, ValueError):
                return ""
            if isinstance(scopes, list) and len(scopes) > 1:
                return str(scopes[-2])
    return ""
