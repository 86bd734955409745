"""What a safetensors file says of its tensors, read without reading any of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from p2p_export.errors import InputError


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: its dtype as the format spells it ("F32"), its bytes in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Entries by tensor name; `InputError` when `path` is not a whole safetensors file."""
    damaged = InputError(f"{path} is not a whole safetensors file; fetch or make it again")
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise damaged
            header = json.loads(file.read(length))
        entries = {
            name: TensorEntry(
                dtype=str(entry["dtype"]),
                shape=tuple(int(n) for n in entry["shape"]),
                offset=8 + length + int(entry["data_offsets"][0]),
                length=int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]),
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; check the path") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise damaged from None
    if any(entry.offset + entry.length > size for entry in entries.values()):
        raise damaged
    return entries
