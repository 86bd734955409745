"""What families' text models differ in: heads tied or not, head sizes, biases, RoPE, windows."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import (
    FAMILY_MODELS,
    ROPE,
    llama_config,
    mistral_config,
    qwen2_config,
    random_llava,
    random_llava_next,
    random_llava_onevision,
    random_proxies,
    random_qwen2_5_vl,
)
from rewritten_decoders import LAYERS, PLANS, Exported, check, chunk
from safetensors.torch import load_file

from p2p_export.errors import InputError
from p2p_export.graphs import export_decoder
from p2p_export.graphs.decoder_module import RotaryEmbedding
from p2p_export.graphs.export import WEIGHTS_FILE
from p2p_export.models import family_of
from p2p_export.models.checkpoint import find_checkpoint, load_model

# One export takes seconds; the family that no other file exports is not slow.
DEFAULT = ("llava_onevision, tied head, yarn",)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in DEFAULT else pytest.mark.slow)
        for name in FAMILY_MODELS
    ],
)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Saved and loaded as users' checkpoints are: a tied head is not in the file."""
    folder = tmp_path_factory.mktemp("variant")
    FAMILY_MODELS[request.param](LAYERS).save_pretrained(folder / "checkpoint")
    checkpoint = find_checkpoint(str(folder / "checkpoint"))
    model, spec = load_model(checkpoint), checkpoint.spec
    export_decoder(model, checkpoint.family, spec, folder)
    return Exported(model, spec, random_proxies(spec), folder)


def chunks_of(exported: Exported) -> list[Any]:
    """A prefill padded on the left, a chunk with more of the image, one token, a later turn."""
    rows = [["..tvvt", "tvvtvv"], ["vvt", "vtt"], ["t", "t"], ["tvvt", "vvtt"], ["t", "t"]]
    return [chunk(exported.spec, piece, seed=i) for i, piece in enumerate(rows)]


@pytest.mark.parametrize("lowering", ["literal", "fused", "elided"])
@pytest.mark.parametrize("name", ["none", "all but first", "frozen amid proxy"])
def test_every_variant_equals_the_hooks(variant: Exported, name: str, lowering: str) -> None:
    check(variant, PLANS[name], chunks_of(variant), lowering)


@pytest.mark.parametrize("lowering", ["literal", "fused", "elided"])
@pytest.mark.parametrize("what", ["frequencies", "scaling"])
def test_another_rope_is_noticed(variant: Exported, lowering: str, what: str) -> None:
    other = copy.deepcopy(variant.model)
    rotary = other.model.language_model.rotary_emb
    if what == "frequencies":
        rotary.inv_freq *= 0.99
    else:
        rotary.attention_scaling *= 1.01
    with pytest.raises(AssertionError):
        check(
            replace(variant, model=other),
            PLANS["frozen amid proxy"],
            chunks_of(variant),
            lowering,
        )


def test_the_head_is_the_embedding_exactly_when_the_config_ties_them(variant: Exported) -> None:
    saved = load_file(variant.folder / "checkpoint" / "model.safetensors")
    tied = variant.model.config.tie_word_embeddings
    assert any(name.endswith("lm_head.weight") for name in saved) != tied
    head = load_file(variant.folder / WEIGHTS_FILE)["lm_head.weight"]
    embedding = variant.model.model.language_model.embed_tokens.weight
    assert torch.equal(head, embedding) == tied


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn", "yarn, attention_factor"])
@pytest.mark.parametrize("family", ["llava", "llava_next", "llava_onevision", "qwen2_5_vl"])
def test_cos_and_sin_of_every_static_rope_are_transformers_own(family: str, kind: str) -> None:
    rope = {**ROPE[kind.split(",")[0]]}
    if "attention_factor" in kind:
        rope["attention_factor"] = 0.7
    models: dict[str, Any] = {
        "llava": lambda: random_llava(1, text=llama_config(1, rope_parameters=rope)),
        "llava_next": lambda: random_llava_next(1, text=mistral_config(1, rope_parameters=rope)),
        "llava_onevision": lambda: random_llava_onevision(
            1, text=qwen2_config(1, rope_parameters=rope)
        ),
        "qwen2_5_vl": lambda: random_qwen2_5_vl(1, rope=rope),
    }
    model = models[family]()
    rotary = model.model.language_model.rotary_emb
    spec = family_of(model.config).decoder_spec(model.config)
    ours = RotaryEmbedding(spec, float(rotary.attention_scaling))
    ours.inv_freq = rotary.inv_freq
    axes = (3,) if spec.position_axes == 3 else ()
    positions = torch.randint(0, 4000, (*axes, 2, 9), generator=torch.Generator().manual_seed(0))
    expected = rotary(torch.zeros(2, 9, 48), positions)
    found = ours(positions)
    if len(axes):
        expected = tuple(in_sections(table, spec.mrope_section) for table in expected)
    for ours_table, table in zip(found, expected, strict=True):
        assert (ours_table - table).abs().max() < 1e-6


def in_sections(table: torch.Tensor, sections: tuple[int, ...]) -> torch.Tensor:
    """[3,B,S,hd] or already [B,S,hd] -> [B,S,hd]: each section from its own axis, both halves."""
    if table.ndim == 3:
        return table
    parts = table.split(list(sections) * 2, dim=-1)
    return torch.cat([part[i % 3] for i, part in enumerate(parts)], dim=-1)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rope_that_changes_with_the_sequence_is_refused(kind: str, tmp_path: Path) -> None:
    model = random_llava(1, text=llama_config(1, rope_parameters=ROPE[kind]))
    refused(model, tmp_path, f"RoPE of type '{kind}' changes with the sequence")


def test_rope_on_a_part_of_the_head_is_refused(tmp_path: Path) -> None:
    rope = {**ROPE["linear"], "partial_rotary_factor": 0.5}
    model = random_llava(1, text=llama_config(1, rope_parameters=rope))
    refused(model, tmp_path, "RoPE turns 8 of 16 numbers of a head")


def test_a_mistral_that_sees_a_window_only_is_refused(tmp_path: Path) -> None:
    """v0.1 has a window of 4096 tokens; LLaVA-NeXT's Mistral, v0.2, has none."""
    model = random_llava_next(1, text=mistral_config(1, sliding_window=4096))
    refused(model, tmp_path, "a sliding window of 4096 tokens")


def test_a_qwen2_that_sees_a_window_in_some_layers_is_refused(tmp_path: Path) -> None:
    text = qwen2_config(2, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    refused(random_llava_onevision(2, text=text), tmp_path, "a sliding window of 8 tokens")


def refused(model: Any, folder: Path, words: str) -> None:
    family = family_of(model.config)
    with pytest.raises(InputError, match=words):
        export_decoder(model, family, family.decoder_spec(model.config), folder)
    assert not list(folder.iterdir())
