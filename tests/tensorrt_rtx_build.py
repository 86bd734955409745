"""Builds an ONNX graph with TensorRT-RTX, ahead of time, for a GPU this machine need not have.

    python tests/tensorrt_rtx_build.py decoder.onnx

One optimization profile: a prefill with a cache, within the sizes below. Prints the engine's size,
or what the parser says, and exits with 1. A process of its own: some failures of the builder end
the process.
"""

from __future__ import annotations

import sys

import onnx
import tensorrt_rtx as trt

# Least, likely and largest size of each dynamic dimension; every column is one call that can be.
SIZES = {
    "batch": (1, 1, 2),
    "sequence": (1, 8, 64),
    "past": (0, 8, 64),
    "context": (1, 16, 128),
    "text_rows": (1, 4, 32),
    "visual_rows": (1, 4, 32),
    "text_past": (0, 4, 64),
    "text_context": (1, 8, 96),
    "visual_context": (1, 8, 64),
}
# Shape inputs: their values.
VALUES = {"visual_start": (0, 2, 32), "visual_end": (0, 6, 64)}


def build(path: str) -> int:
    """Size in bytes of the engine for the graph at `path`; `RuntimeError` when there is none."""
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, builder.logger)
    if not parser.parse_from_file(path):
        raise RuntimeError("; ".join(str(parser.get_error(i)) for i in range(parser.num_errors)))
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    profile = builder.create_optimization_profile()
    for tensor in onnx.load(path, load_external_data=False).graph.input:
        if tensor.name in VALUES:
            profile.set_shape_input(tensor.name, *([value] for value in VALUES[tensor.name]))
            continue
        dims = tensor.type.tensor_type.shape.dim
        sizes = [SIZES[d.dim_param] if d.dim_param else (d.dim_value,) * 3 for d in dims]
        profile.set_shape(tensor.name, *zip(*sizes, strict=True))
    config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise RuntimeError("the builder made no engine")
    return int(engine.nbytes)


if __name__ == "__main__":
    try:
        print(f"{build(sys.argv[1])} bytes, TensorRT-RTX {trt.__version__}")
    except RuntimeError as error:
        sys.exit(str(error))
