"""The token embedding of a bundle, looked up without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from random_models import VOCABULARY, random_llava, random_qwen2_5_vl
from safetensors.torch import save_file

from p2p_export.engines.token_embedding import TokenEmbedding
from p2p_export.errors import BundleError, InputError
from p2p_export.graphs.embedding import export_embedding
from p2p_export.models import family_of

IDS = np.array([[0, 5, VOCABULARY - 1], [7, 7, 1]])


@pytest.mark.parametrize("make", [random_llava, random_qwen2_5_vl])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_rows_equal_the_models(make, precision, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model = make(1)
    path = export_embedding(model, family_of(model.config), tmp_path, precision=precision)
    embedding = TokenEmbedding(path)
    wanted = model.get_input_embeddings()(torch.from_numpy(IDS)).detach().numpy()
    assert embedding.dtype == {"fp32": np.float32, "fp16": np.float16}[precision]
    assert (embedding.vocab_size, embedding.hidden_size) == (VOCABULARY, 48)
    np.testing.assert_array_equal(embedding(IDS), wanted.astype(embedding.dtype))
    assert not np.array_equal(embedding(IDS), embedding(IDS[::-1]))


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    model = random_llava(1)
    embedding = TokenEmbedding(export_embedding(model, family_of(model.config), tmp_path))
    for token in (-1, VOCABULARY):
        with pytest.raises(InputError, match=f"token id {token} lies outside"):
            embedding(np.array([[1, token]]))


def test_files_that_hold_no_embedding_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "embedding.safetensors"
    table = torch.zeros(4, 2)
    save_file({"embed_tokens.weight": table.bfloat16()}, path)
    with pytest.raises(BundleError, match="BF16 values, which NumPy has no type for"):
        TokenEmbedding(path)
    save_file({"other": table}, path)
    with pytest.raises(BundleError, match="holds no token embedding"):
        TokenEmbedding(path)
    path.write_bytes(b"\x10\0\0\0\0\0\0\0" + json.dumps({}).encode())
    with pytest.raises(InputError, match="not a whole safetensors file"):
        TokenEmbedding(path)
    path.write_text("plain text, and longer than eight bytes")
    with pytest.raises(InputError, match="not a whole safetensors file"):
        TokenEmbedding(path)
    save_file({"embed_tokens.weight": table}, path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match="not a whole safetensors file"):
        TokenEmbedding(path)
