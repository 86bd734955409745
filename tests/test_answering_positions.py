"""Position ids computed in NumPy equal those transformers' models compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from random_models import IMAGE_TOKEN, random_llava, random_qwen2_5_vl

from p2p_export.models.positions import (
    mrope_position_ids,
    next_position_ids,
    sequential_position_ids,
)

# Patches per axis; two by two become a row.
GRIDS = np.array([[1, 4, 6], [1, 8, 2], [1, 6, 6]])
ROWS = (6, 4, 9)


def prompts(*parts: list[int | str]) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask, left-padded; "image" stands for the next image's rows, a number for words."""
    left = iter(ROWS)
    rows = [
        [i for part in row for i in ([IMAGE_TOKEN] * next(left) if part == "image" else [9] * part)]
        for row in parts
    ]
    width = max(map(len, rows))
    ids = np.array([[0] * (width - len(row)) + row for row in rows])
    mask = np.array([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


CASES = {
    "image first": prompts(["image", 3]),
    "image last": prompts([3, "image"]),
    "text alone": prompts([5]),
    "two images": prompts([2, "image", 1, "image", 4]),
    "images side by side, padding": prompts([7, "image", 1, "image", 12], [1, "image"]),
    "image absent in one row": prompts([4, "image", 2], [3]),
}


@pytest.fixture(scope="module")
def qwen() -> Any:
    return random_qwen2_5_vl(1)


@pytest.mark.parametrize("case", CASES)
def test_mrope_equals_get_rope_index(qwen: Any, case: str) -> None:
    ids, mask = CASES[case]
    visual = ids == IMAGE_TOKEN
    grids = GRIDS[: np.searchsorted(np.cumsum(ROWS), visual.sum(), side="right")]
    found = mrope_position_ids(mask, visual, grids, spatial_merge_size=2)
    wanted, deltas = qwen.model.get_rope_index(
        torch.from_numpy(ids),
        mm_token_type_ids=torch.from_numpy(visual.astype(np.int32)),
        image_grid_thw=torch.from_numpy(grids) if len(grids) else None,
        attention_mask=torch.from_numpy(mask),
    )
    real = mask.astype(bool)
    np.testing.assert_array_equal(found[:, real], wanted.numpy()[:, real])
    following = next_position_ids("mrope", found)
    lengths = real.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(following, np.stack([lengths + deltas.numpy()] * 3))


def test_another_grid_gives_other_positions() -> None:
    ids, mask = CASES["image first"]
    visual = ids == IMAGE_TOKEN
    one, other = (
        mrope_position_ids(mask, visual, np.array([grid]), spatial_merge_size=2)
        for grid in ([1, 4, 6], [1, 6, 4])
    )
    assert not np.array_equal(one, other)


def test_sequential_is_what_llava_computes_itself() -> None:
    model = random_llava(2)
    ids, mask = CASES["image absent in one row"]
    ids[ids == IMAGE_TOKEN] = 8
    seen: list[torch.Tensor] = []

    def remember(module: Any, args: Any, kwargs: Any) -> None:
        seen.append(kwargs["position_ids"] if "position_ids" in kwargs else args[1])

    hook = model.model.language_model.rotary_emb.register_forward_pre_hook(
        remember, with_kwargs=True
    )
    with torch.no_grad():
        model.generate(
            input_ids=torch.from_numpy(ids),
            attention_mask=torch.from_numpy(mask),
            do_sample=False,
            max_new_tokens=2,
            min_new_tokens=2,
        )
    hook.remove()
    found = sequential_position_ids(mask)
    real = mask.astype(bool)
    np.testing.assert_array_equal(found[real], seen[0].numpy()[real])
    np.testing.assert_array_equal(next_position_ids("sequential", found), seen[1].numpy())
