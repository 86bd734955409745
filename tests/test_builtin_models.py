"""The built-in models load offline with transformers' own classes, and they see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    LlavaForConditionalGeneration,
    Qwen2_5_VLForConditionalGeneration,
)

import p2p_export
from p2p_export.calibration.tiny_vqa import Scene, scene
from p2p_export.calibration.tiny_vqa_composition import TASKS, Question

BUILTIN = Path(p2p_export.__file__).parent / "builtin"
CLASSES = {
    "tiny-llava": LlavaForConditionalGeneration,
    "tiny-qwen2.5-vl": Qwen2_5_VLForConditionalGeneration,
}
DECODER_LAYERS = {"tiny-llava": 12, "tiny-qwen2.5-vl": 8}


@dataclass(frozen=True)
class Loaded:
    name: str
    processor: Any
    model: Any

    def inputs(self, images: list[Image.Image], questions: list[str]) -> Any:
        prompts = [
            self.processor.apply_chat_template(
                [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}],
                add_generation_prompt=True,
            )
            for text in questions
        ]
        return self.processor(images=images, text=prompts, padding=True, return_tensors="pt")

    def first_words(self, images: list[Image.Image], questions: list[str]) -> list[str]:
        with torch.inference_mode():
            logits = self.model(**self.inputs(images, questions), logits_to_keep=1).logits
        return list(self.processor.batch_decode(logits[:, -1].argmax(-1)[:, None]))


@pytest.fixture(scope="module", params=sorted(CLASSES))
def loaded(request: pytest.FixtureRequest) -> Loaded:
    folder = BUILTIN / request.param
    processor = AutoProcessor.from_pretrained(folder, local_files_only=True)
    model = AutoModelForImageTextToText.from_pretrained(
        folder, local_files_only=True, dtype=torch.float32
    )
    return Loaded(request.param, processor, model.eval())


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [scene(index) for index in range(50_000, 50_040)]


def flattened(scenes: list[Scene]) -> tuple[list[Image.Image], list[Question]]:
    pairs = [(Image.fromarray(one.image), q) for one in scenes for q in one.questions]
    images, questions = zip(*pairs, strict=True)
    return list(images), list(questions)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_folder_holds_small_safetensors_and_a_card(name: str) -> None:
    files = sorted(path.name for path in (BUILTIN / name).iterdir() if path.name[0] != ".")
    assert files == [
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "processor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert sum(path.stat().st_size for path in (BUILTIN / name).iterdir()) < 12e6


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_weights_are_stored_in_half_precision(name: str) -> None:
    model = AutoModelForImageTextToText.from_pretrained(BUILTIN / name, local_files_only=True)
    assert model.dtype == torch.float16


def test_the_classes_are_transformers_own(loaded: Loaded) -> None:
    assert type(loaded.model) is CLASSES[loaded.name]
    assert loaded.model.config.text_config.num_hidden_layers == DECODER_LAYERS[loaded.name]


@pytest.mark.parametrize("size", [(128, 128), (64, 64), (333, 333), (20, 20)])
def test_a_square_image_of_any_size_becomes_64_visual_tokens(
    loaded: Loaded, size: tuple[int, int]
) -> None:
    inputs = loaded.inputs([Image.new("RGB", size)], ["is there a red circle?"])
    assert int((inputs["input_ids"] == loaded.model.config.image_token_id).sum()) == 64


def test_an_oblong_image_gets_a_feature_for_every_visual_token(loaded: Loaded) -> None:
    inputs = loaded.inputs([Image.new("RGB", (300, 90))], ["is there a red circle?"])
    visual = int((inputs["input_ids"] == loaded.model.config.image_token_id).sum())
    with torch.inference_mode():
        logits = loaded.model(**inputs).logits
    assert logits.shape[1] == inputs["input_ids"].shape[1] >= visual > 30


def test_text_stands_before_and_after_the_image(loaded: Loaded) -> None:
    ids = loaded.inputs([Image.new("RGB", (9, 9))], ["what color is the circle?"])["input_ids"][0]
    visual = torch.nonzero(ids == loaded.model.config.image_token_id).flatten()
    assert visual.tolist() == list(range(int(visual[0]), int(visual[0]) + 64))
    assert visual[0] >= 3
    after = loaded.processor.decode(ids[visual[-1] + 1 :], skip_special_tokens=True)
    assert after.startswith("what color is the circle ?")


def test_capital_letters_and_spaces_do_not_matter(loaded: Loaded) -> None:
    tokenizer = loaded.processor.tokenizer
    plain = tokenizer("is there a red circle?")["input_ids"]
    assert tokenizer(" Is there a  RED circle ?")["input_ids"] == plain
    assert tokenizer.unk_token_id not in plain
    assert tokenizer.unk_token_id in tokenizer("is there a zebra?")["input_ids"]


def test_every_word_a_scene_can_ask_or_answer_is_one_token(loaded: Loaded) -> None:
    from p2p_export.calibration.tiny_vqa_wording import VOCABULARY

    ids = [loaded.processor.tokenizer(word)["input_ids"] for word in VOCABULARY]
    assert all(len(one) == 1 for one in ids)
    assert loaded.processor.tokenizer.unk_token_id not in {one[0] for one in ids}


def test_generate_answers_with_one_word_and_stops(loaded: Loaded, scenes: list[Scene]) -> None:
    images, questions = flattened(scenes[:3])
    right = 0
    for image, question in zip(images, questions, strict=True):
        inputs = loaded.inputs([image], [question.question])
        prompt = inputs["input_ids"].shape[1]
        output = loaded.model.generate(**inputs, max_new_tokens=8)[0, prompt:]
        assert len(output) == 2
        assert output[1] == loaded.model.generation_config.eos_token_id
        right += loaded.processor.decode(output, skip_special_tokens=True) == question.answer
    assert right >= 16, f"{right} of {len(questions)}"


def test_held_out_questions_are_answered(loaded: Loaded, scenes: list[Scene]) -> None:
    images, questions = flattened(scenes)
    answers = loaded.first_words(images, [q.question for q in questions])
    right = np.array([a == q.answer for a, q in zip(answers, questions, strict=True)])
    assert right.mean() >= 0.93
    for task in TASKS:
        assert right[[q.task == task for q in questions]].mean() >= 0.85, task


def test_with_another_scene_s_image_the_answers_are_lost(
    loaded: Loaded, scenes: list[Scene]
) -> None:
    images, questions = flattened(scenes)
    swapped = images[len(TASKS) :] + images[: len(TASKS)]
    answers = loaded.first_words(swapped, [q.question for q in questions])
    assert np.mean([a == q.answer for a, q in zip(answers, questions, strict=True)]) < 0.5


def test_padding_on_the_left_keeps_the_logits(loaded: Loaded, scenes: list[Scene]) -> None:
    images, questions = flattened(scenes[:1])
    texts = [q.question for q in questions]
    with torch.inference_mode():
        together = loaded.model(**loaded.inputs(images, texts)).logits[:, -1]
        for row, (image, text) in enumerate(zip(images, texts, strict=True)):
            alone = loaded.model(**loaded.inputs([image], [text])).logits[0, -1]
            torch.testing.assert_close(together[row], alone, atol=2e-4, rtol=1e-4)
