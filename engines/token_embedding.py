"""Looking up token embeddings in a bundle: the file is mapped, only the rows asked for are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.errors import BundleError, InputError

NAME = "embed_tokens.weight"
DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}
LONGEST_HEADER = 2**20


class TokenEmbedding:
    """`embedding.safetensors` of a bundle: [vocab, D], float32 or float16."""

    def __init__(self, path: Path) -> None:
        try:
            begin, shape, dtype = _locate(path)
            self._table: npt.NDArray[Any] = np.memmap(path, dtype, "r", begin, shape)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BundleError(
                f"{path} does not hold a token embedding ({error}); export the bundle again"
            ) from None

    @property
    def vocab_size(self) -> int:
        return int(self._table.shape[0])

    @property
    def hidden_size(self) -> int:
        return int(self._table.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._table.dtype

    def __call__(self, input_ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """[B,S] int64 -> [B,S,D], a copy. `InputError` for an id outside the vocabulary."""
        ids = np.asarray(input_ids)
        outside = ids[(ids < 0) | (ids >= self.vocab_size)]
        if outside.size:
            raise InputError(
                f"token id {int(outside[0])} lies outside the embedding's {self.vocab_size} rows; "
                "use the tokenizer of this bundle"
            )
        return np.array(self._table[ids])


def _locate(path: Path) -> tuple[int, tuple[int, int], np.dtype[Any]]:
    """Offset in the file, shape and dtype of the one tensor a safetensors file holds."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LONGEST_HEADER:
            raise ValueError("it is no safetensors file")
        entry = json.loads(file.read(length))[NAME]
    dtype = DTYPES.get(entry["dtype"])
    if dtype is None:
        raise BundleError(
            f"{path} holds {entry['dtype']} values, which NumPy has no type for; "
            "export the bundle with --precision fp32 or fp16"
        )
    rows, columns = entry["shape"]
    return 8 + length + entry["data_offsets"][0], (rows, columns), dtype
