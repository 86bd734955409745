"""What a safetensors file says of its tensors, read without reading any of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p_export.errors import InputError
from p2p_export.json_reading import parse_json
from p2p_export.json_schema import first_error


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: its dtype as the format spells it ("F32"), its bytes in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


# What the format itself allows.
LONGEST_HEADER = 100_000_000
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "U16": 16, "I16": 16, "F16": 16,
    "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
}  # fmt: skip
_SIZE = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_SIZES = {"type": "array", "items": _SIZE}
SCHEMA = {
    "type": "object",
    "properties": {"__metadata__": {"type": "object"}},
    "additionalProperties": {
        "type": "object",
        "required": ["dtype", "shape", "data_offsets"],
        "properties": {
            "dtype": {"type": "string"},
            "shape": _SIZES,
            "data_offsets": {**_SIZES, "minItems": 2},
        },
    },
}


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Entries by tensor name; `InputError` when `path` is not a whole safetensors file."""
    damaged = InputError(f"{path} is not a whole safetensors file; fetch or make it again")
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(size - 8, LONGEST_HEADER):
                raise damaged
            content = file.read(length)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; check the path") from None
    header = parse_json(content, where=f"the header of {path}", advice="fetch or make it again")
    if first_error(header, SCHEMA) is not None:
        raise damaged
    entries = {
        name: _entry(entry, 8 + length) for name, entry in header.items() if name != "__metadata__"
    }
    if not all(_is_whole(entry, size) for entry in entries.values()):
        raise damaged
    return entries


def _entry(values: Mapping[str, Any], start: int) -> TensorEntry:
    begin, end = values["data_offsets"][:2]
    return TensorEntry(values["dtype"], tuple(values["shape"]), start + begin, end - begin)


def _is_whole(entry: TensorEntry, size: int) -> bool:
    """Whether the tensor's bytes lie in a file of `size` bytes and are as many as its shape says;
    a dtype we do not know is left to who reads it."""
    if entry.length < 0 or entry.offset + entry.length > size:
        return False
    bits = BITS.get(entry.dtype)
    return bits is None or math.prod(entry.shape) * bits == entry.length * 8
