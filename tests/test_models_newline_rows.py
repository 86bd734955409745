"""Which rows of LLaVA-OneVision's images and videos are newlines: transformers' packing decides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from random_models import IMAGE_TOKEN, PINPOINTS, VIDEO_TOKEN, random_llava_onevision
from transformers.models.llava_onevision.modeling_llava_onevision import image_size_to_num_patches

from p2p_export.errors import InputError
from p2p_export.models import family_of
from p2p_export.models.llava_onevision import newline_rows

TEXT = 7
SIZES = [(32, 64), (64, 64), (50, 20), (31, 90), (200, 201), (64, 63)]


def marking_model(**options: Any) -> Any:
    """Its projector makes ones of every patch and its newline is zeros."""
    model = random_llava_onevision(1, **options)
    with torch.no_grad():
        for parameter in model.model.multi_modal_projector.parameters():
            parameter.zero_()
        model.model.multi_modal_projector.linear_2.bias.fill_(1)
        model.model.image_newline.zero_()
    return model


def pixels(model: Any, sizes: list[tuple[int, int]], together: list[int]) -> torch.Tensor:
    """[images, most tiles, 3, 32, 32], as many tiles as transformers cuts an image into."""
    alone = [count == 1 for count in together for _ in range(count)]
    tiles = [
        image_size_to_num_patches(size, PINPOINTS, 32) if one else 1
        for size, one in zip(sizes, alone, strict=True)
    ]
    return torch.zeros(len(sizes), max(tiles), 3, 32, 32)


def image_rows(model: Any, sizes: list[tuple[int, int]], together: list[int]) -> list[np.ndarray]:
    """bool [rows] of each image, by transformers' own tower, projector and packing."""
    with torch.no_grad():
        packed = model.model.get_image_features(
            pixels(model, sizes, together),
            torch.tensor(sizes),
            batch_num_images=torch.tensor(together),
        ).pooler_output
    return [(features[:, 0] == 0).numpy() for features in packed]


def prompt(*runs: tuple[int, int]) -> np.ndarray:
    """[1,S]: text, then each run (token id, rows) with text behind it."""
    ids = [TEXT]
    for token, rows in runs:
        ids += [token] * rows + [TEXT]
    return np.array([ids])


@pytest.mark.parametrize("limit", ["anyres_max_9", "anyres_max_3", "anyres_max_2", "anyres_max_1"])
@pytest.mark.parametrize("size", SIZES)
def test_an_image_alone_has_a_newline_behind_each_line_of_its_limited_grid(
    size: tuple[int, int], limit: str
) -> None:
    model = marking_model(vision_aspect_ratio=limit)
    (expected,) = image_rows(model, [size], [1])
    ids = prompt((IMAGE_TOKEN, len(expected)))
    rows = newline_rows(ids, model.config, {"image_sizes": [size]})
    assert rows[ids == IMAGE_TOKEN].tolist() == expected.tolist()
    assert not rows[ids != IMAGE_TOKEN].any()


def test_the_limit_scales_a_large_grid_down() -> None:
    """Otherwise the cases above could all be of one kind."""
    rows = {
        limit: len(image_rows(marking_model(vision_aspect_ratio=limit), [(64, 64)], [1])[0])
        for limit in ("anyres_max_9", "anyres_max_3", "anyres_max_1")
    }
    assert rows == {"anyres_max_9": 16 + 8 * 9, "anyres_max_3": 16 + 6 * 7, "anyres_max_1": 36}


@pytest.mark.parametrize("together", [[1, 2, 1], [3, 1], [4], [1, 1, 1, 1]])
def test_one_of_several_images_of_a_prompt_has_one_newline_at_its_end(together: list[int]) -> None:
    model = marking_model()
    sizes = SIZES[:4]
    expected = image_rows(model, sizes, together)
    ids = prompt(*((IMAGE_TOKEN, len(marks)) for marks in expected))
    inputs = {"image_sizes": torch.tensor(sizes), "batch_num_images": torch.tensor(together)}
    rows = newline_rows(ids, model.config, inputs)
    assert rows[ids == IMAGE_TOKEN].tolist() == np.concatenate(expected).tolist()


@pytest.mark.parametrize("patch_size", [8, 10], ids=["even side", "odd side"])
def test_a_video_has_one_newline_behind_its_last_frame(patch_size: int) -> None:
    model = marking_model(patch_size=patch_size)
    videos = torch.zeros(2, 3, 3, 32, 32)
    with torch.no_grad():
        features = model.model.get_video_features(videos).pooler_output
    expected = (features[..., 0] == 0).numpy()
    assert expected.shape[1] == 3 * math.ceil((32 // patch_size) / 2) ** 2 + 1
    ids = prompt((VIDEO_TOKEN, expected.shape[1]), (VIDEO_TOKEN, expected.shape[1]))
    rows = newline_rows(ids, model.config, {"pixel_values_videos": videos})
    assert rows[ids == VIDEO_TOKEN].tolist() == expected.reshape(-1).tolist()


def test_image_and_video_in_one_prompt_and_what_stays_visual() -> None:
    model = marking_model()
    (image,) = image_rows(model, [(32, 64)], [1])
    video = 2 * 4 + 1
    ids = prompt((IMAGE_TOKEN, len(image)), (VIDEO_TOKEN, video))
    inputs = {"image_sizes": [(32, 64)], "pixel_values_videos": torch.zeros(1, 2, 3, 32, 32)}
    family = family_of(model.config)
    everything = family.visual_mask(ids, model.config, inputs)
    patches = family.visual_mask(ids, model.config, inputs, newline="text")
    assert everything.sum() == len(image) + video
    assert (everything & ~patches).sum() == image.sum() + 1


def test_a_prompt_of_text_alone_has_no_newline_rows() -> None:
    rows = newline_rows(prompt(), marking_model().config, {})
    assert rows.tolist() == [[False]]


class TestRefusals:
    def test_a_prompt_of_another_length(self) -> None:
        with pytest.raises(InputError, match="holds 11 image tokens and the images make"):
            newline_rows(
                prompt((IMAGE_TOKEN, 11)), marking_model().config, {"image_sizes": [(32, 64)]}
            )

    def test_a_video_of_another_length(self) -> None:
        with pytest.raises(InputError, match="holds 11 video tokens and the videos make 9"):
            newline_rows(
                prompt((VIDEO_TOKEN, 11)),
                marking_model().config,
                {"pixel_values_videos": torch.zeros(1, 2, 3, 32, 32)},
            )

    @pytest.mark.parametrize(
        ("token", "missing"),
        [(IMAGE_TOKEN, "image_sizes"), (VIDEO_TOKEN, "pixel_values_videos")],
    )
    def test_inputs_without_the_sizes(self, token: int, missing: str) -> None:
        with pytest.raises(InputError, match=f"no `{missing}`"):
            newline_rows(prompt((token, 5)), marking_model().config, {})

    def test_image_counts_that_do_not_fit(self) -> None:
        inputs = {"image_sizes": [(32, 64)], "batch_num_images": [2]}
        with pytest.raises(InputError, match="counts 2 images and `image_sizes` holds 1"):
            newline_rows(prompt((IMAGE_TOKEN, 5)), marking_model().config, inputs)

    def test_an_aspect_ratio_of_another_kind(self) -> None:
        model = marking_model(vision_aspect_ratio="pad")
        with pytest.raises(InputError, match=r"'anyres_max_N'.*'pad'.*newline rows as visual"):
            newline_rows(prompt((IMAGE_TOKEN, 5)), model.config, {"image_sizes": [(32, 64)]})
