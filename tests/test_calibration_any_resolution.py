"""Any-resolution images: prompts whose visual rows differ in number and place, newline rows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from random_models import (
    PINPOINTS,
    clip_config,
    llama_config,
    mistral_config,
    qwen2_config,
    random_proxies,
    randomized,
    siglip_config,
)
from transformers import (
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionProcessor,
)
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)

from p2p_export import Plan
from p2p_export.calibration import patched
from p2p_export.calibration.embedding import embed
from p2p_export.calibration.loaded_model import LoadedModel
from p2p_export.calibration.prompting import Prompter
from p2p_export.calibration.samples import Sample
from p2p_export.calibration.sweep import answer_rows, proxy_plan
from p2p_export.cli.main import main
from p2p_export.models import family_of
from p2p_export.models.checkpoint import find_checkpoint, load_processor
from p2p_export.models.image_only_processor import without_video
from p2p_export.plan import Newline

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


def llava_next(base: Any, text_config: Any) -> LoadedModel:
    config = LlavaNextConfig(
        vision_config=clip_config(),
        text_config=text_config,
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


def llava_onevision(base: Any, text_config: Any) -> LoadedModel:
    """A grid of 4 tiles is scaled down: it is more than 1.1^2 times the limit of 3."""
    config = LlavaOnevisionConfig(
        vision_config=siglip_config(),
        text_config=text_config,
        image_token_index=base.tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=text_config.vocab_size - 1,
        image_grid_pinpoints=PINPOINTS,
        vision_aspect_ratio="anyres_max_3",
    )
    images = LlavaOnevisionImageProcessorPil(
        size={"height": 32, "width": 32}, image_grid_pinpoints=PINPOINTS
    )
    processor = without_video(LlavaOnevisionProcessor)(
        images,
        base.tokenizer,
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_3",
        chat_template=base.chat_template,
    )
    model = randomized(LlavaOnevisionForConditionalGeneration(config), 0)
    return LoadedModel(model, processor, family_of(config))


TEXT_CONFIGS = {
    "llava_next, llama": lambda: llama_config(3, key_value_heads=2),
    "llava_next, mistral": lambda: mistral_config(3),
    "llava_onevision": lambda: qwen2_config(3),
}


@pytest.fixture(scope="module", params=list(TEXT_CONFIGS))
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    base = load_processor(find_checkpoint("tiny-llava"))
    text_config = TEXT_CONFIGS[request.param]()
    # One id more than words: OneVision's video placeholder.
    text_config.vocab_size = len(base.tokenizer) + 1
    make = llava_onevision if request.param.startswith("llava_onevision") else llava_next
    return make(base, text_config)


# Rows and newline rows among them of the images of SIZES.
VISUAL = {"llava_next": ((72, 34, 88), (8, 2, 8)), "llava_onevision": ((72, 34, 58), (8, 2, 6))}


@pytest.mark.parametrize("newline", ["visual", "text"])
def test_sweep_points_equal_full_passes(loaded: LoadedModel, newline: Newline) -> None:
    prompter = Prompter(loaded.processor, loaded.family, loaded.model.config, newline)
    prompts = prompter.prepare(SAMPLES)
    rows, closing = VISUAL[loaded.family.architecture]
    visual = np.subtract(rows, closing) if newline == "text" else rows
    assert [tokens.visual for tokens in prompts.tokens][::2] == list(visual)
    proxies = random_proxies(loaded.spec)
    with torch.no_grad():
        answers = answer_rows(loaded, proxies, embed(loaded, prompts))
    for number, sample in enumerate(SAMPLES):
        batch = embed(loaded, prompter.prepare([sample]))
        for first, last, row in ((0, 1, answers.forward[1]), (1, 2, answers.backward[1])):
            plan = proxy_plan(first, last)
            with torch.no_grad(), patched(loaded.model, plan, proxies, batch.visual_mask):
                full = loaded.decoder(
                    inputs_embeds=batch.inputs_embeds,
                    attention_mask=batch.attention_mask,
                    position_ids=batch.position_ids,
                ).last_hidden_state[0, -1]
            assert (full - row[number]).abs().max() < 1e-4 * full.abs().max()


def test_plan_and_evaluate_go_the_whole_way(
    loaded: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the command line, from a checkpoint folder: `plan --newline text`, `evaluate`."""
    says_yes(loaded)
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.processor.save_pretrained(tmp_path / "model")
    entries = []
    for number in range(12):
        width, height = SIZES[number % len(SIZES)]
        NoiseImage(number, width, height).load().save(tmp_path / f"{number}.png")
        entries.append({"image": f"{number}.png", "question": QUESTIONS[0], "answer": "yes"})
    data = tmp_path / "questions.jsonl"
    data.write_text("\n".join(json.dumps(entry) for entry in entries))
    sizes = ["--calibration-size", "3", "--validation-size", "6", "--test-size", "3"]
    plan_path = tmp_path / "plan.json"
    argv = ["plan", "--model", str(tmp_path / "model"), "--data", str(data), "--newline", "text"]
    assert main([*argv, *sizes, "-o", str(plan_path)]) in (0, 1)
    plan = Plan.load(plan_path)
    assert plan.newline == "text"
    assert plan.model.architecture == loaded.family.architecture
    rows, closing = VISUAL[loaded.family.architecture]
    assert plan.evidence is not None
    mean_visual = plan.evidence["flops"]["tokens"]["mean_visual"]
    patches = np.subtract(rows, closing)
    assert patches.min() <= mean_visual <= patches.max()
    capsys.readouterr()
    assert main(["evaluate", "--plan", str(plan_path), "--json"]) in (0, 1)
    assert len(json.loads(capsys.readouterr().out)["answers"]) == 3


def says_yes(loaded: LoadedModel) -> None:
    """Make the dense model answer "yes", so that it has an accuracy to keep."""
    prompter = Prompter(loaded.processor, loaded.family, loaded.model.config)
    batch = embed(loaded, prompter.prepare(SAMPLES))
    with torch.no_grad():
        dense = loaded.decoder(
            inputs_embeds=batch.inputs_embeds,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
        ).last_hidden_state[:, -1]
        head = loaded.model.lm_head.weight
        head.zero_()
        yes = loaded.processor.tokenizer.convert_tokens_to_ids("yes")
        head[yes] = dense.mean(0)
