"""Turn a training checkpoint into a complete fp16 Hugging Face folder.

python examples/tiny_vlm/export.py --model tiny-llava --checkpoint tiny-llava.pt --out FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from architectures import NAMES, build_model, build_tokenizer
from transformers import LlavaProcessor, PaddleOCRVLProcessor, PreTrainedModel, ProcessorMixin
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from p2p_export.calibration.tiny_vqa_composition import IMAGE_SIZE

MEAN_STD = [0.5, 0.5, 0.5]


def build_processor(name: str) -> ProcessorMixin:
    """Processor that resizes any image to 128x128 (or as many pixels) with PIL alone.

    transformers' Qwen2_5_VLProcessor cannot exist without a video processor, which needs
    torchvision; PaddleOCRVLProcessor is the same for images and needs none.
    """
    tokenizer = build_tokenizer(name)
    template = tokenizer.chat_template
    tokenizer.chat_template = None
    if name == "tiny-llava":
        square = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
        images = CLIPImageProcessorPil(
            size=square, crop_size=square, do_center_crop=False,
            image_mean=MEAN_STD, image_std=MEAN_STD,
        )  # fmt: skip
        return LlavaProcessor(
            images, tokenizer, patch_size=16, vision_feature_select_strategy="default",
            num_additional_image_tokens=1, chat_template=template,
        )  # fmt: skip
    area = IMAGE_SIZE * IMAGE_SIZE
    images = Qwen2VLImageProcessorPil(
        patch_size=8, merge_size=2, temporal_patch_size=2,
        size={"shortest_edge": area, "longest_edge": area},
        image_mean=MEAN_STD, image_std=MEAN_STD,
    )  # fmt: skip
    return PaddleOCRVLProcessor(images, tokenizer, chat_template=template)


def trained_model(name: str, checkpoint: Path) -> PreTrainedModel:
    """The model of a checkpoint, in fp16, set to answer greedily."""
    tokenizer = build_tokenizer(name)
    model = build_model(name, tokenizer)
    model.load_state_dict(torch.load(checkpoint)["states"][0])
    model.half()
    generation = model.generation_config
    generation.do_sample = False
    generation.max_new_tokens = 2
    generation.bos_token_id = tokenizer.bos_token_id
    generation.eos_token_id = tokenizer.eos_token_id
    generation.pad_token_id = tokenizer.pad_token_id
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=NAMES, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    trained_model(arguments.model, arguments.checkpoint).save_pretrained(arguments.out)
    build_processor(arguments.model).save_pretrained(arguments.out)


if __name__ == "__main__":
    main()
