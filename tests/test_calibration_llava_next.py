"""Any-resolution images: prompts whose visual rows differ in number and place, newline rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from random_models import clip_config, llama_config, random_proxies, randomized
from transformers import (
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
)
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)

from p2p_export.calibration import patched
from p2p_export.calibration.embedding import embed
from p2p_export.calibration.loaded_model import LoadedModel
from p2p_export.calibration.prompting import Prompter
from p2p_export.calibration.samples import Sample
from p2p_export.calibration.sweep import answer_rows, proxy_plan
from p2p_export.models import family_of
from p2p_export.models.checkpoint import find_checkpoint, load_processor
from p2p_export.plan import Newline

PINPOINTS = [[32, 64], [64, 32], [64, 64]]
SIZES = ((40, 60), (100, 30), (64, 64))
QUESTIONS = ("is there a red circle?", "how many blue shapes are there?")


@dataclass(frozen=True)
class NoiseImage:
    seed: int
    width: int
    height: int

    @property
    def image_id(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def load(self) -> Image.Image:
        shape = (self.height, self.width, 3)
        pixels = np.random.default_rng(self.seed).integers(0, 256, shape, dtype=np.uint8)
        return Image.fromarray(pixels)


SAMPLES = tuple(
    Sample(f"{size} {question}", question, ("yes",), "t", NoiseImage(number, *size))
    for number, size in enumerate(SIZES)
    for question in QUESTIONS
)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    base = load_processor(find_checkpoint("tiny-llava"))
    text = llama_config(3, key_value_heads=2)
    text.vocab_size = len(base.tokenizer)
    config = LlavaNextConfig(
        vision_config=clip_config(),
        text_config=text,
        image_token_index=base.tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=PINPOINTS,
    )
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 32},
        crop_size={"height": 32, "width": 32},
        image_grid_pinpoints=PINPOINTS,
    )
    processor = LlavaNextProcessor(
        images,
        base.tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=base.chat_template,
    )
    model = randomized(LlavaNextForConditionalGeneration(config), 0)
    return LoadedModel(model, processor, family_of(config))


@pytest.mark.parametrize(("newline", "visual"), [("visual", (72, 34, 88)), ("text", (64, 32, 80))])
def test_sweep_points_equal_full_passes(
    loaded: LoadedModel, newline: Newline, visual: tuple[int, ...]
) -> None:
    prompter = Prompter(loaded.processor, loaded.family, loaded.model.config, newline)
    prompts = prompter.prepare(SAMPLES)
    assert [tokens.visual for tokens in prompts.tokens][::2] == list(visual)
    proxies = random_proxies(loaded.spec)
    with torch.no_grad():
        rows = answer_rows(loaded, proxies, embed(loaded, prompts))
    for number, sample in enumerate(SAMPLES):
        batch = embed(loaded, prompter.prepare([sample]))
        for first, last, row in ((0, 1, rows.forward[1]), (1, 2, rows.backward[1])):
            plan = proxy_plan(first, last)
            with torch.no_grad(), patched(loaded.model, plan, proxies, batch.visual_mask):
                full = loaded.decoder(
                    inputs_embeds=batch.inputs_embeds,
                    attention_mask=batch.attention_mask,
                    position_ids=batch.position_ids,
                ).last_hidden_state[0, -1]
            assert (full - row[number]).abs().max() < 1e-4 * full.abs().max()
