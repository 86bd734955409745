"""Looking up token embeddings in a bundle: the file is mapped, only the rows asked for are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.errors import BundleError, InputError
from p2p_export.safetensors_header import read_header

NAME = "embed_tokens.weight"
DTYPES: Mapping[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


class TokenEmbedding:
    """`embedding.safetensors` of a bundle: [vocab, D], float32 or float16.

    Raises `BundleError` for a file that holds no such table.
    """

    def __init__(self, path: Path) -> None:
        entry = read_header(path).get(NAME)
        if entry is None or len(entry.shape) != 2:
            raise BundleError(
                f"{path} holds no token embedding named {NAME}; export the bundle again"
            )
        dtype = DTYPES.get(entry.dtype)
        if dtype is None:
            raise BundleError(
                f"{path} holds {entry.dtype} values, which NumPy has no type for; export the "
                "bundle with --precision fp32 or fp16"
            )
        self._table: npt.NDArray[Any] = np.memmap(path, dtype, "r", entry.offset, entry.shape)

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
