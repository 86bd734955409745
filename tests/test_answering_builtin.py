"""The built-in models answer the same questions alike through a bundle and through `generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from p2p_export.calibration.datasets import load_dataset
from p2p_export.engines.answering import BundleAnswerer, Question
from p2p_export.export import export_bundle
from p2p_export.models.checkpoint import find_checkpoint, load_model, load_processor
from p2p_export.plan import Plan, PlanModel

QUESTIONS = 120


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-llava", "tiny-qwen2.5-vl"])
def test_bundle_answers_equal_generate(name: str, tmp_path: Path) -> None:
    export_bundle(Plan(PlanModel(name), layers={}), tmp_path / "bundle")
    answerer = BundleAnswerer(tmp_path / "bundle", dense=True)
    checkpoint = find_checkpoint(name)
    model, processor = load_model(checkpoint), load_processor(checkpoint)
    samples = load_dataset("tiny-vqa", limit=QUESTIONS).samples
    questions = [Question([sample.image.load()], sample.question) for sample in samples]
    found = list(answerer.answer_all(questions, batch_size=16, max_new_tokens=2))
    wanted = [generated(model, processor, question) for question in questions]
    assert [answer.text for answer in found] == wanted
    right = np.mean([text in sample.answers for text, sample in zip(wanted, samples, strict=True)])
    assert right > 0.8


def generated(model: Any, processor: Any, question: Question) -> str:
    content = [{"type": "image"}, {"type": "text", "text": question.prompt}]
    prompt = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    inputs = processor(
        text=[prompt],
        images=list(question.images),
        return_tensors="pt",
        add_special_tokens=not prompt.startswith(processor.tokenizer.bos_token or "\0"),
    )
    with torch.no_grad():
        output = model.generate(**inputs, do_sample=False, max_new_tokens=2)
    tokens = output[0, inputs["input_ids"].shape[1] :]
    return str(processor.tokenizer.decode(tokens, skip_special_tokens=True)).strip()
