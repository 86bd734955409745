"""The built-in models' shapes and processors with few layers and random weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from random_models import randomized
from transformers import AutoModelForImageTextToText

from p2p_export.calibration.datasets import Dataset, load_dataset
from p2p_export.calibration.embedding import DecoderBatch, embed
from p2p_export.calibration.loaded_model import LoadedModel
from p2p_export.calibration.prompting import Prompter
from p2p_export.calibration.samples import Sample
from p2p_export.models.checkpoint import find_checkpoint, load_processor
from p2p_export.proxies import SITES

BOTH = ("tiny-llava", "tiny-qwen2.5-vl")


def random_loaded(name: str, *, layers: int = 3, seed: int = 0, calm: bool = False) -> LoadedModel:
    """A built-in model's processor around random weights.

    `calm`: transformers' own initial weights, which hardly magnify rounding from layer to layer.
    """
    checkpoint = find_checkpoint(name)
    config = checkpoint.config
    text = config.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    if not calm:
        randomized(model, seed)
    model.generation_config.eos_token_id = text.eos_token_id
    return LoadedModel(model, load_processor(checkpoint), checkpoint.family)


def prompter_of(loaded: LoadedModel) -> Prompter:
    return Prompter(loaded.processor, loaded.family, loaded.model.config)


def batch_of(loaded: LoadedModel, samples: tuple[Sample, ...]) -> DecoderBatch:
    return embed(loaded, prompter_of(loaded).prepare(samples))


def scenes(questions: int) -> Dataset:
    return load_dataset("tiny-vqa", limit=questions)


def save_checkpoint(loaded: LoadedModel, name: str, folder: Path) -> Path:
    """A checkpoint folder that `find_checkpoint` takes."""
    source: Any = find_checkpoint(name).folder
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix != ".safetensors" and path.name != "config.json":
            shutil.copy(path, folder / path.name)
    loaded.model.save_pretrained(folder)
    return folder


def hooks_at_sites(loaded: LoadedModel) -> int:
    """Forward hooks on the decoder's linears (transformers keeps some of its own elsewhere)."""
    return sum(
        len(loaded.family.site(loaded.model, layer, site)._forward_hooks)
        for layer in range(loaded.spec.num_hidden_layers)
        for site in SITES
    )
