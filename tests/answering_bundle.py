"""Tiny bundles with a dense decoder, vision part, tokenizer and processor, to be asked."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from random_models import IMAGE_TOKEN, VOCABULARY, random_llava, random_qwen2_5_vl
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlavaProcessor, PreTrainedTokenizerFast, Qwen2_5_VLProcessor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from p2p_export.bundle import describe_files, read_manifest
from p2p_export.graph_bindings import read_bindings
from p2p_export.graphs import export_decoder
from p2p_export.graphs.embedding import export_embedding
from p2p_export.graphs.vision import export_vision
from p2p_export.manifest import (
    BundleModel,
    Golden,
    Limits,
    Manifest,
    Positions,
    TokenIds,
)
from p2p_export.models import family_of
from p2p_export.models.image_only_processor import without_video
from p2p_export.models.vision import VisionInfo

SPECIALS = ("<pad>", "<s>", "</s>", "<image>", "<video>", "<vision>", "</vision>", "<unk>")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }} : "
    "{% for item in message['content'] %}{% if item['type'] == 'image' %}IMAGE "
    "{% else %}{{ item['text'] }}{% endif %}{% endfor %} {% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)
IMAGE_PLACE = {"llava": "<image>", "qwen2_5_vl": "<vision><image></vision>"}
MAKERS = {"llava": random_llava, "qwen2_5_vl": random_qwen2_5_vl}


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, w0 to w50; BOS is added unless the text begins with it."""
    words = [*SPECIALS, "user", "assistant", ":"]
    words += [f"w{i}" for i in range(VOCABULARY - len(words))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side="left",
        extra_special_tokens={"image_token": "<image>", "video_token": "<video>"},
        additional_special_tokens=["<vision>", "</vision>"],
    )


def processor(family: str) -> Any:
    template = TEMPLATE.replace("IMAGE", IMAGE_PLACE[family])
    if family == "llava":
        images = CLIPImageProcessorPil(size=32, crop_size=32)
        return LlavaProcessor(
            images,
            tokenizer(),
            patch_size=8,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=template,
        )
    images = Qwen2VLImageProcessorPil(patch_size=8, min_pixels=16 * 64, max_pixels=40 * 64)
    return without_video(Qwen2_5_VLProcessor)(images, tokenizer(), chat_template=template)


@dataclass(frozen=True)
class AskedBundle:
    """A bundle made once for all tests that ask it; copy `folder` before changing it."""

    family: str
    folder: Path
    model: Any
    vision: VisionInfo


@functools.cache
def asked_bundle(family: str) -> AskedBundle:
    folder = Path(tempfile.mkdtemp(prefix="p2p-export-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model = write_bundle(family, folder)
    return AskedBundle(family, folder, model, VisionInfo.from_dict(read_manifest(folder).vision))


def write_bundle(family_name: str, folder: Path) -> Any:
    """A whole bundle in `folder`; returns the model it was made from."""
    model = MAKERS[family_name](2)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 2, 0
    family = family_of(model.config)
    spec = family.decoder_spec(model.config)
    export_decoder(model, family, spec, folder)
    (folder / "decoder.onnx").write_bytes((folder / "decoder.dense.onnx").read_bytes())
    export_embedding(model, family, folder)
    vision = export_vision(model, family, folder)
    processor(family_name).save_pretrained(folder / "processor")
    mrope = family.position_scheme == "mrope"
    manifest = Manifest(
        versions={},
        target="ort",
        precision="fp32",
        lowering="fused",
        layout="index",
        model=BundleModel("random", family_name, None),
        decoder=spec,
        layers={},
        newline="visual",
        tokens=TokenIds(
            image=(IMAGE_TOKEN,), video=(4,) if mrope else (), bos=(1,), eos=(2,), pad=(0,)
        ),
        positions=Positions(family.position_scheme, 2 if mrope else None),
        limits=Limits(),
        graphs={path.name: read_bindings(path) for path in sorted(folder.glob("*.onnx"))},
        golden=Golden(atol=1e-4, rtol=0, source="random"),
        vision=vision.to_dict(),
        files=describe_files(folder),
    )
    (folder / "manifest.json").write_bytes(manifest.to_json())
    return model


def rewrite_manifest(folder: Path, **changes: Any) -> None:
    """Set fields of a bundle's manifest, and list the files that are there."""
    manifest = replace(read_manifest(folder), files=describe_files(folder), **changes)
    (folder / "manifest.json").write_bytes(manifest.to_json())


def picture(seed: int, width: int = 40, height: int = 40) -> PIL.Image.Image:
    """Smooth random colours, another one for each seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    return PIL.Image.fromarray(coarse).resize((width, height), PIL.Image.Resampling.BILINEAR)
