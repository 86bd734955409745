"""A bundle, asked about images, answers as transformers' `generate` does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from answering_bundle import IMAGE_PLACE, asked_bundle, picture, processor, rewrite_manifest

from p2p_export.engines.answering import BundleAnswerer, Question
from p2p_export.errors import InputError
from p2p_export.manifest import Limits

NEW_TOKENS = 5
QUESTIONS = [
    Question([picture(1)], "w1 w2 w3"),
    Question([picture(2, 64, 40), picture(3, 33, 50)], "w4"),
    Question([], "w5 w6 w7 w8"),
    Question([picture(4, 40, 90)], "w9 w10 w11 w12 w13"),
]


@pytest.fixture(scope="module", params=["llava", "qwen2_5_vl"])
def asked(request: pytest.FixtureRequest) -> Any:
    """Family, bundle folder, the model it was made from, and an answerer."""
    bundle = asked_bundle(request.param)
    return bundle.family, bundle.folder, bundle.model, BundleAnswerer(bundle.folder)


def generated(family: str, model: Any, question: Question) -> list[int]:
    """Greedy `generate` with transformers' own processor."""
    prepare = processor(family)
    slots = [{"type": "image"}] * len(question.images)
    content = [*slots, {"type": "text", "text": question.prompt}]
    text = prepare.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    inputs = prepare(
        text=[text],
        images=list(question.images) or None,
        return_tensors="pt",
        add_special_tokens=False,
    )
    with torch.no_grad():
        output = model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS)
    tokens = output[0, inputs["input_ids"].shape[1] :].tolist()
    return tokens[: tokens.index(2)] if 2 in tokens else tokens


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.prompt)
def test_answers_equal_generate(asked: Any, question: Question) -> None:
    family, _, model, answerer = asked
    answer = answerer.answer(question.images, question.prompt, max_new_tokens=NEW_TOKENS)
    assert list(answer.token_ids) == generated(family, model, question)
    assert answer.text == " ".join(answer.text.split())
    assert (answer.visual_tokens > 0) == bool(question.images)


def test_a_batch_answers_as_one_by_one(asked: Any) -> None:
    _, _, _, answerer = asked
    alone = [
        answerer.answer(question.images, question.prompt, max_new_tokens=NEW_TOKENS)
        for question in QUESTIONS
    ]
    together = list(answerer.answer_all(QUESTIONS, batch_size=3, max_new_tokens=NEW_TOKENS))
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    assert len({answer.token_ids for answer in alone}) > 1


def test_the_image_is_looked_at(asked: Any) -> None:
    _, _, _, answerer = asked
    first = answerer.batch([answerer.prepare(Question([picture(1)], "w1"))])
    other = answerer.batch([answerer.prepare(Question([picture(9)], "w1"))])
    logits = [
        answerer.session.prefill(
            each.inputs_embeds, each.position_ids, each.visual_mask, each.attention_mask
        )[0]
        for each in (first, other)
    ]
    assert np.abs(logits[0] - logits[1]).max() > 1e-2


def test_placeholders_of_the_prompt_stay_where_they_are(asked: Any) -> None:
    family, _, _, answerer = asked
    place = IMAGE_PLACE[family]
    ids = answerer.prepare(Question([picture(1)], f"w1 {place} w2")).input_ids.tolist()
    word = answerer.prompter.encode("w1 w2", []).tolist()[-2:]
    assert ids.index(word[0]) < ids.index(3) < ids.index(word[1])


@pytest.mark.parametrize(
    ("images", "places", "sentence"),
    [
        (0, 1, r"has 1 place for an image \(<image>\) and no images were given"),
        (1, 2, r"has 2 places for an image \(<image>\) and 1 image was given"),
        (3, 2, r"has 2 places for an image \(<image>\) and 3 images were given"),
    ],
)
def test_images_and_places_must_agree(asked: Any, images: int, places: int, sentence: str) -> None:
    family, _, _, answerer = asked
    prompt = f"{IMAGE_PLACE[family]} " * places + "w1"
    with pytest.raises(InputError, match=sentence):
        answerer.answer([picture(1)] * images, prompt)


def test_an_image_without_a_place_is_refused(asked: Any, tmp_path: Path) -> None:
    _, folder, _, _ = asked
    bundle = copied(folder, tmp_path)
    (bundle / "processor/chat_template.jinja").write_text("{{ messages[0]['role'] }} :")
    rewrite_manifest(bundle)
    with pytest.raises(InputError, match="its chat template makes none; write <image> where"):
        BundleAnswerer(bundle).answer([picture(1)], "w1")
    (bundle / "processor/chat_template.jinja").unlink()
    rewrite_manifest(bundle)
    with pytest.raises(InputError, match="no chat template that would make one"):
        BundleAnswerer(bundle).answer([picture(1)], "w1")


def test_what_a_bundle_lacks_is_named(asked: Any, tmp_path: Path) -> None:
    _, folder, _, answerer = asked
    with pytest.raises(InputError, match=r"no image file at .*absent\.png"):
        answerer.answer([tmp_path / "absent.png"], "w1")
    bundle = copied(folder, tmp_path)
    graphs = dict(answerer.manifest.graphs)
    del graphs["vision.onnx"]
    missing = "left out with --only decoder"
    rewrite_manifest(bundle, vision=None, vision_missing=missing, graphs=graphs)
    blind = BundleAnswerer(bundle)
    assert blind.answer([], "w5 w6").token_ids == answerer.answer([], "w5 w6").token_ids
    with pytest.raises(InputError, match=r"no vision part .left out with --only decoder"):
        blind.answer([picture(1)], "w1")
    (bundle / "processor/tokenizer.json").unlink()
    rewrite_manifest(bundle)
    with pytest.raises(InputError, match=r"no tokenizer\.json .* cannot read a prompt"):
        BundleAnswerer(bundle)
    (bundle / "embedding.safetensors").unlink()
    rewrite_manifest(bundle)
    with pytest.raises(InputError, match=r"no embedding\.safetensors"):
        BundleAnswerer(bundle)


def test_more_visual_tokens_than_the_bundle_is_made_for(asked: Any, tmp_path: Path) -> None:
    bundle = copied(asked[1], tmp_path)
    rewrite_manifest(bundle, limits=Limits(max_visual_tokens=20))
    answerer = BundleAnswerer(bundle)
    assert answerer.answer([picture(1, 32, 32)], "w1").visual_tokens <= 20
    with pytest.raises(InputError, match="visual tokens and this bundle was made for at most 20"):
        answerer.answer([picture(1)] * 6, "w1")


def test_image_processor_settings_are_needed(asked: Any, tmp_path: Path) -> None:
    bundle = copied(asked[1], tmp_path)
    (bundle / "processor/processor_config.json").unlink()
    rewrite_manifest(bundle)
    with pytest.raises(InputError, match="no image processor settings"):
        BundleAnswerer(bundle).answer([picture(1)], "w1")


WITHOUT_TORCH = """
import importlib.machinery, json, sys

class Without(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = {"torch", "transformers", "onnx", "safetensors", "jsonschema", "scipy"}
        return None if name.split(".")[0] in hidden else super().find_spec(name, path, target)

sys.meta_path = [Without if each is importlib.machinery.PathFinder else each
                 for each in sys.meta_path]
from p2p_export.engines.answering import BundleAnswerer
answer = BundleAnswerer(sys.argv[1]).answer([sys.argv[2]], "w1 w2 w3", max_new_tokens=5)
print(json.dumps(answer.to_dict()))
"""


def test_answers_without_torch_or_transformers(asked: Any, tmp_path: Path) -> None:
    _, folder, _, answerer = asked
    picture(1).save(tmp_path / "image.png")
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, folder, tmp_path / "image.png"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    expected = answerer.answer([picture(1)], "w1 w2 w3", max_new_tokens=NEW_TOKENS)
    assert tuple(json.loads(run.stdout)["token_ids"]) == expected.token_ids


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / "bundle"))
