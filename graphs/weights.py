"""Weight files: tensors streamed into one safetensors file that graphs point into.

An external initializer of ONNX names a file, an offset and a length; inside a safetensors file a
tensor has all three, so the same file serves every graph that shares its weights, and any tool
that reads safetensors can look at it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from p2p_export.errors import InputError

SAFETENSORS_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
ONNX_DTYPES = {
    torch.float32: ir.DataType.FLOAT,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
}


@dataclass(frozen=True)
class WeightLocation:
    """Where one tensor's bytes lie in its file, counted from the start of the file."""

    offset: int
    length: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def write_weights(
    path: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> dict[str, WeightLocation]:
    """Write `tensors`, converted to `dtype` one at a time, as safetensors; say where each lies.

    The file appears whole or not at all. Raises `InputError` when it exists or cannot be written,
    and for a weight that `dtype` cannot hold.
    """
    if path.exists():
        raise InputError(f"{path} is there already; remove it or name another folder")
    header: dict[str, Any] = {}
    begins: dict[str, int] = {}
    end = 0
    for name, tensor in tensors.items():
        begins[name], end = end, end + tensor.numel() * dtype.itemsize
        header[name] = {
            "dtype": SAFETENSORS_DTYPES[dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begins[name], end],
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    start = 8 + len(encoded)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb") as file:
            file.write(len(encoded).to_bytes(8, "little") + encoded)
            for name, tensor in tensors.items():
                converted = tensor.detach().to("cpu", dtype).contiguous()
                if not converted.isfinite().all():
                    raise InputError(
                        f"weight {name} holds values that {str(dtype).partition('.')[2]} cannot "
                        "hold; export with --precision fp32"
                    )
                file.write(converted.reshape(-1).view(torch.uint8).numpy().data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise InputError(
            f"cannot write the weights {path}: {error.strerror}; free space there "
            f"({(start + end) / 2**20:.0f} MiB are needed) or name another place"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return {
        name: WeightLocation(
            start + begins[name], tensor.numel() * dtype.itemsize, tuple(tensor.shape), dtype
        )
        for name, tensor in tensors.items()
    }


def attach_weights(
    model: ir.Model, file_name: str, locations: Mapping[str, WeightLocation]
) -> None:
    """Point the initializers of `model` into the file `file_name` that lies beside the graph."""
    for name, at in locations.items():
        model.graph.initializers[name].const_value = ir.ExternalTensor(
            location=file_name,
            offset=at.offset,
            length=at.length,
            dtype=ONNX_DTYPES[at.dtype],
            shape=ir.Shape(at.shape),
            name=name,
        )
