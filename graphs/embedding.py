"""A checkpoint's token embedding -> `embedding.safetensors`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from torch import Tensor

from p2p_export.graphs.export import DTYPES, Precision
from p2p_export.graphs.weights import write_weights
from p2p_export.models import Family

EMBEDDING_FILE = "embedding.safetensors"
EMBEDDING_NAME = "embed_tokens.weight"


def export_embedding(
    model: Any, family: Family, folder: Path, *, precision: Precision = "fp32"
) -> Path:
    """Write the token embedding [vocab, D] in the graph's precision; returns its path."""
    weight = family.decoder(model).get_submodule("embed_tokens").weight
    path = folder / EMBEDDING_FILE
    write_weights(path, {EMBEDDING_NAME: cast(Tensor, weight)}, DTYPES[precision])
    return path
