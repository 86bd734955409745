"""Prompts and answers are those of the model's own processor and `generate`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from calibration_models import BOTH, batch_of, prompter_of, random_loaded, scenes

from p2p_export.calibration.answering import LONG_ANSWER_TOKENS, answer, answer_tokens_needed
from p2p_export.errors import InputError
from p2p_export.models.positions import sequential_position_ids


def generated(loaded: Any, samples: Any, max_new_tokens: int) -> list[str]:
    """transformers' own way: template, processor, generate; one sample at a time, no padding."""
    answers = []
    for sample in samples:
        content = [{"type": "image"}, {"type": "text", "text": sample.question}]
        text = loaded.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True
        )
        inputs = loaded.processor(images=[sample.image.load()], text=[text], return_tensors="pt")
        with torch.no_grad():
            output = loaded.model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
        new = output[:, inputs["input_ids"].shape[1] :]
        answers.append(loaded.processor.tokenizer.decode(new[0], skip_special_tokens=True).strip())
    return answers


@pytest.mark.parametrize("name", BOTH)
def test_answers_in_left_padded_batches_equal_generate(name: str) -> None:
    loaded = random_loaded(name)
    samples = scenes(9).samples
    batch = batch_of(loaded, samples)
    ours = answer(loaded, batch, 4)
    assert ours == generated(loaded, samples, 4)
    assert len(set(ours)) > 1
    assert answer(loaded, batch, 1) == generated(loaded, samples, 1)


def test_an_answer_ends_at_the_end_token() -> None:
    loaded = random_loaded("tiny-llava")
    samples = scenes(6).samples
    batch = batch_of(loaded, samples)
    before = answer(loaded, batch, 4)
    with torch.no_grad():
        first = loaded.decoder(
            inputs_embeds=batch.inputs_embeds,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
        ).last_hidden_state[:, -1]
        ends = loaded.head(first).argmax(-1).tolist()
    loaded.model.generation_config.eos_token_id = ends[:1]
    after = answer(loaded, batch, 4)
    for token, short, long in zip(ends, after, before, strict=True):
        assert len(short) <= len(long)
        if token == ends[0]:
            assert len(short.split()) <= 1
    assert after == generated(loaded, samples, 4)


@pytest.mark.parametrize("name", BOTH)
def test_the_mask_marks_image_rows_and_padding_is_on_the_left(name: str) -> None:
    loaded = random_loaded(name)
    prompts = prompter_of(loaded).prepare(scenes(6).samples)
    token = loaded.family.visual_token_ids(loaded.model.config)[0]
    assert torch.equal(prompts.visual_mask, prompts.input_ids == token)
    assert (prompts.attention_mask.diff(dim=1) >= 0).all()
    assert len({tokens.total for tokens in prompts.tokens}) > 1
    assert {tokens.visual for tokens in prompts.tokens} == {64}
    if name == "tiny-llava":
        expected = sequential_position_ids(prompts.attention_mask.numpy())
        assert np.array_equal(prompts.position_ids.numpy(), expected)
    else:
        assert prompts.position_ids.shape[0] == 3


def test_without_a_chat_template_the_image_stands_before_the_question() -> None:
    loaded = random_loaded("tiny-llava")
    loaded.processor.chat_template = None
    sample = scenes(1).samples[0]
    prompter = prompter_of(loaded)
    assert prompter.text(sample) == f"<image>\n{sample.question}"
    assert prompter.prepare([sample]).visual_mask.sum() == 64


def test_a_template_without_a_place_for_the_image_is_refused() -> None:
    loaded = random_loaded("tiny-llava")
    loaded.processor.chat_template = (
        "{% for m in messages %}{{ m['content'][1]['text'] }}{% endfor %}"
    )
    with pytest.raises(InputError, match="leaves 0 places for one image"):
        prompter_of(loaded).prepare(scenes(1).samples)


def test_a_question_that_holds_the_placeholder_is_refused() -> None:
    loaded = random_loaded("tiny-llava")
    sample = replace(scenes(1).samples[0], question="<image> is it red?")
    with pytest.raises(InputError, match="the question holds '<image>'"):
        prompter_of(loaded).prepare([sample])


def test_the_first_token_is_not_written_twice() -> None:
    loaded = random_loaded("tiny-llava")
    tokenizer = loaded.processor.tokenizer
    prompts = prompter_of(loaded).prepare(scenes(2).samples)
    assert ((prompts.input_ids == tokenizer.bos_token_id).sum(1) == 1).all()


def test_one_token_is_enough_where_every_answer_is_one() -> None:
    loaded = random_loaded("tiny-llava")
    samples = scenes(12).samples
    tokenizer = loaded.processor.tokenizer
    assert answer_tokens_needed(tokenizer, samples) == 1
    longer = [*samples, replace(samples[0], answers=("dark red",))]
    assert answer_tokens_needed(tokenizer, longer) == LONG_ANSWER_TOKENS
