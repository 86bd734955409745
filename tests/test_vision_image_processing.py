"""Image processing without transformers equals transformers' processors bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from p2p_export.engines.image_processing import image_processor, open_image
from p2p_export.errors import BundleError, InputError

SIZES = ((64, 48), (37, 91), (50, 50), (7, 9), (300, 20))


def picture(size: tuple[int, int], mode: str = "RGB") -> PIL.Image.Image:
    width, height = size
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "P": (3,)}[mode]
    values = np.random.default_rng(width).integers(0, 256, (height, width, *channels), np.uint8)
    image = PIL.Image.fromarray(values)
    return image.quantize(16) if mode == "P" else image


def check_equal(processor: Any, images: list[PIL.Image.Image]) -> None:
    wanted = processor(images, return_tensors="np")
    found = image_processor(processor.to_dict())(images)
    assert set(found) == set(wanted)
    for name, array in found.items():
        assert array.dtype == wanted[name].dtype
        np.testing.assert_array_equal(array, wanted[name])


@pytest.mark.parametrize(
    "processor",
    [
        CLIPImageProcessorPil(),
        CLIPImageProcessorPil(size={"shortest_edge": 30}, crop_size={"height": 31, "width": 40}),
        CLIPImageProcessorPil(size={"height": 32, "width": 48}, do_center_crop=False),
        CLIPImageProcessorPil(do_resize=False, crop_size={"height": 25, "width": 33}, resample=2),
        LlavaImageProcessorPil(do_pad=True, size={"shortest_edge": 28}, crop_size=28),
    ],
    ids=["as shipped", "crop beyond the image", "fixed size", "crop alone", "padded to a square"],
)
def test_clip_pixels_equal_transformers(processor: Any) -> None:
    check_equal(processor, [picture(size) for size in SIZES])


@pytest.mark.parametrize(
    "processor",
    [
        Qwen2VLImageProcessorPil(),
        Qwen2VLImageProcessorPil(
            patch_size=8, size={"shortest_edge": 4096, "longest_edge": 4096}, merge_size=2
        ),
        Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 3, temporal_patch_size=1),
    ],
    ids=["as shipped", "one area for all", "few pixels"],
)
def test_qwen2_vl_patches_equal_transformers(processor: Any) -> None:
    check_equal(processor, [picture(size) for size in SIZES])


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_other_colour_modes_become_rgb(mode: str) -> None:
    check_equal(CLIPImageProcessorPil(size=20, crop_size=20), [picture((33, 21), mode)])


def test_settings_of_older_checkpoints_are_read() -> None:
    """Numbers for sizes, `min_pixels` beside no `size`, and the fast processor's name."""
    image = picture((64, 48))
    clip = image_processor(
        {"image_processor_type": "CLIPImageProcessor", "size": 28, "crop_size": 28}
    )
    wanted = CLIPImageProcessorPil(size=28, crop_size=28)([image], return_tensors="np")
    np.testing.assert_array_equal(clip([image])["pixel_values"], wanted["pixel_values"])
    qwen = image_processor(
        {"image_processor_type": "Qwen2VLImageProcessorFast", "min_pixels": 784, "max_pixels": 1568}
    )
    wanted = Qwen2VLImageProcessorPil(min_pixels=784, max_pixels=1568)([image], return_tensors="np")
    np.testing.assert_array_equal(qwen([image])["pixel_values"], wanted["pixel_values"])


def test_a_pixel_more_is_another_image() -> None:
    process = image_processor(CLIPImageProcessorPil(size=20, crop_size=20).to_dict())
    image = picture((40, 40))
    before = process([image])["pixel_values"].copy()
    image.putpixel((20, 20), (0, 255, 0))
    assert not np.array_equal(before, process([image])["pixel_values"])


def test_files_are_opened_upright(tmp_path: Path) -> None:
    image = picture((40, 20))
    exif = image.getexif()
    exif[0x0112] = 6  # turned by a quarter
    image.save(tmp_path / "turned.png", exif=exif)
    assert open_image(tmp_path / "turned.png").size == (20, 40)


def test_unreadable_images_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no image file at .*absent\.png"):
        open_image(tmp_path / "absent.png")
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(InputError, match=r"text\.png cannot be read"):
        open_image(tmp_path / "text.png")
    picture((40, 40)).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:900])
    with pytest.raises(InputError, match=r"half\.png cannot be read"):
        open_image(tmp_path / "half.png")
    with pytest.raises(InputError, match="too narrow"):
        image_processor({"image_processor_type": "Qwen2VLImageProcessor"})([picture((2001, 10))])
    with pytest.raises(BundleError, match="'SiglipImageProcessor' is not one the runtime has"):
        image_processor({"image_processor_type": "SiglipImageProcessor"})
