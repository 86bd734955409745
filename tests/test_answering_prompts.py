"""Prompts written without transformers equal those of transformers' processors, id for id."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from answering_bundle import SPECIALS, TEMPLATE, picture, processor, tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from p2p_export.engines.prompting import Prompter
from p2p_export.errors import BundleError, InputError

TEMPLATES = {
    "loops and JSON": (
        "{% set ns = namespace(count=0) %}{{ bos_token }}{%- for message in messages %}\n"
        "    {%- for item in message.content %}{% if item.type == 'text' and not item.text %}"
        "{% break %}{% endif %}\n"
        "        {%- if item.type == 'image' %}{% set ns.count = ns.count + 1 %}<image>\n"
        "        {%- else %}{{ item.text | tojson }}{{ ns.count }}{% endif %}\n"
        "    {% endfor %}\n{% endfor %}\n"
        "{% if add_generation_prompt %}assistant : {{ eos_token }}{% endif %}"
    ),
    "plain": TEMPLATE.replace("IMAGE", "<image>"),
}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("images", [0, 1, 2])
def test_rendered_prompts_equal_transformers(tmp_path: Path, template: str, images: int) -> None:
    prepare = processor("llava")
    prepare.chat_template = TEMPLATES[template]
    prepare.save_pretrained(tmp_path)
    content = [{"type": "image"}] * images + [{"type": "text", "text": 'w1 "ä" <b> \n w2'}]
    wanted = prepare.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    prompter = Prompter(tmp_path, image_token_id=3)
    assert prompter.render('w1 "ä" <b> \n w2', images) == wanted


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize("begins_with_bos", [True, False])
def test_ids_equal_those_of_the_processor(
    tmp_path: Path, family: str, begins_with_bos: bool
) -> None:
    prepare = processor(family)
    prepare.save_pretrained(tmp_path)
    images = [picture(1, 40, 64), picture(2, 90, 30)]
    text = "<s>" * begins_with_bos + "w1 <image> w2 <image>w3"
    inputs = prepare(
        text=[text], images=images, return_tensors="np", add_special_tokens=not begins_with_bos
    )
    rows = [16, 16]
    if family == "qwen2_5_vl":
        rows = (inputs["image_grid_thw"].prod(axis=1) // 4).tolist()
    found = Prompter(tmp_path, image_token_id=3).encode(text, rows)
    np.testing.assert_array_equal(found, inputs["input_ids"][0])


def test_ids_of_a_sentencepiece_like_tokenizer_equal_transformers(tmp_path: Path) -> None:
    """Word starts marked, byte fallback, BOS added by a post-processor: as Llama has it."""
    pieces = [
        *SPECIALS,
        *(f"<0x{i:02X}>" for i in range(256)),
        *"▁abcdefghij",
        "▁a",
        "ab",
    ]
    backend = Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            [("▁", "a"), ("a", "b")],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip()]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
    )
    prepare = LlavaProcessor(
        CLIPImageProcessorPil(size=32, crop_size=32),
        fast,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    prepare.save_pretrained(tmp_path)
    prompter = Prompter(tmp_path, image_token_id=3)
    for text in ("a b <image>\nab ? é", "<s>USER: <image> ab"):
        begun = text.startswith("<s>")
        inputs = prepare(
            text=[text],
            images=[picture(1)],
            return_tensors="np",
            add_special_tokens=not begun,
        )
        ids = prompter.encode(text, [16])
        np.testing.assert_array_equal(ids, inputs["input_ids"][0])
        assert ids.tolist().count(1) == 1
        assert prompter.decode(ids) == fast.decode(ids, skip_special_tokens=True).strip()


@pytest.mark.parametrize("place", ["jinja", "chat_template.json", "tokenizer_config.json", "list"])
def test_the_chat_template_is_found_where_checkpoints_keep_it(tmp_path: Path, place: str) -> None:
    tokenizer().save_pretrained(tmp_path)
    if place == "jinja":
        (tmp_path / "chat_template.jinja").write_text("here")
    elif place == "chat_template.json":
        (tmp_path / place).write_text(json.dumps({"chat_template": "here"}))
    else:
        path = tmp_path / "tokenizer_config.json"
        named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "here"}]
        config = json.loads(path.read_text())
        config["chat_template"] = named if place == "list" else "here"
        path.write_text(json.dumps(config))
    assert Prompter(tmp_path, image_token_id=3).render("w1", 0) == "here"


def test_without_a_chat_template_the_prompt_stays_as_it_is(tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path)
    prompter = Prompter(tmp_path, image_token_id=3)
    assert prompter.render("user : <image> w1", 1) == "user : <image> w1"


def test_bad_processor_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        Prompter(tmp_path, image_token_id=3)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BundleError, match=r"tokenizer\.json cannot be read"):
        Prompter(tmp_path, image_token_id=3)
    tokenizer().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('system only') }}")
    with pytest.raises(InputError, match=r"does not take this prompt .system only"):
        Prompter(tmp_path, image_token_id=3).render("w1", 0)
    (tmp_path / "tokenizer_config.json").write_text("no JSON")
    with pytest.raises(BundleError, match=r"tokenizer_config\.json is not JSON"):
        Prompter(tmp_path, image_token_id=3)
