"""Training batches: several questions packed behind one image, with every label they carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from easy_vqa import (
    get_test_image_paths,
    get_test_questions,
    get_train_image_paths,
    get_train_questions,
)
from PIL import Image
from transformers import PreTrainedTokenizerFast

from p2p_export.calibration.tiny_vqa import compose
from p2p_export.calibration.tiny_vqa_composition import (
    GRID,
    IMAGE_SIZE,
    LETTERS,
    Asked,
    Composition,
    Question,
)
from p2p_export.calibration.tiny_vqa_drawing import render
from p2p_export.calibration.tiny_vqa_wording import words

QUESTIONS_PER_TASK = {
    "existence": 1, "relation": 2, "counting": 2, "attribute": 2, "reading": 1, "choice": 1,
}  # fmt: skip
EASY_QUESTIONS = 9


@dataclass(frozen=True)
class Packed:
    """One image, uint8 [128, 128, 3], its questions, and its cells' labels or None (easy-vqa)."""

    image: np.ndarray
    asked: tuple[Asked, ...]
    cells: np.ndarray | None


@dataclass(frozen=True)
class Batch:
    """Tensors of B packed rows of length S.

    Labels are given as flat lists: `places` [N] are indices into the flattened [B*S] positions,
    `targets` [N] token ids, `weights` [N]; `ground_places` [G] likewise, `ground_cells` [G].
    """

    images: torch.Tensor  # uint8 [B, 128, 128, 3]
    input_ids: torch.Tensor  # [B, S]
    position_ids: torch.Tensor  # [B, S] or [3, B, S]
    attention_mask: torch.Tensor  # [B, 1, S, S], 0 where attended, -1e4 elsewhere
    places: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    ground_places: torch.Tensor
    ground_cells: torch.Tensor
    cells: torch.Tensor  # [C, 64, 5], see `cell_labels`
    has_cells: torch.Tensor  # bool [B]


class PromptLayout:
    """The token ids around image and question, as the chat template puts them."""

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerFast, visual_tokens: int) -> None:
        ids = tokenizer.get_vocab()
        if name == "tiny-llava":
            self.before = [ids["<s>"], ids["user"], ids[":"]]
            self.visual = [ids["<image>"]] * visual_tokens
            self.after: list[int] = []
            self.ask = [ids["assistant"], ids[":"]]
        else:
            self.before = [ids["<|im_start|>"], ids["user"], ids["<|vision_start|>"]]
            self.visual = [ids["<|image_pad|>"]] * visual_tokens
            self.after = [ids["<|vision_end|>"]]
            self.ask = [ids["<|im_end|>"], ids["<|im_start|>"], ids["assistant"]]
        self.eos = tokenizer.eos_token_id
        self.pad = tokenizer.pad_token_id
        self.ids = ids
        self.multimodal_rope = name != "tiny-llava"
        self.prefix = self.before + self.visual + self.after

    def prefix_positions(self) -> np.ndarray:
        """int [3, P]: positions of the prefix; three equal rows without multimodal RoPE."""
        count = len(self.prefix)
        if not self.multimodal_rope:
            return np.tile(np.arange(count), (3, 1))
        first, side = len(self.before), GRID
        rows, columns = np.divmod(np.arange(side * side), side)
        visual = np.stack([np.zeros_like(rows), rows, columns]) + first
        after = np.tile(first + side + np.arange(len(self.after)), (3, 1))
        return np.concatenate([np.tile(np.arange(first), (3, 1)), visual, after], axis=1)


def scene_row(
    index: int, objects: tuple[int, int], choices: int = 1, letters: bool = False
) -> Packed:
    """A training scene with `choices` multiple-choice questions, or those of them about letters."""
    composition, rng = compose(
        index,
        split="train",
        questions={**QUESTIONS_PER_TASK, "choice": choices},
        objects=objects,
    )
    image = render(composition, rng)
    asked = tuple(
        one
        for one in composition.asked
        if not (letters and one.question.task == "choice" and one.value not in LETTERS)
    )
    return Packed(image, asked, cell_labels(composition))


def cell_labels(composition: Composition) -> np.ndarray:
    """int [64, 5]: kind (0 empty, 1 object, 2 sign), color, shape, letter, its place; -1: none."""
    labels = np.full((GRID**2, 5), -1)
    labels[:, 0] = 0
    for thing in composition.things:
        labels[thing.cell] = 1, thing.color, thing.shape, -1, -1
    for place, (letter, cell) in enumerate(composition.sign):
        labels[cell] = 2, -1, -1, letter, place
    return labels


@cache
def easy_vqa_images(split: str) -> np.ndarray:
    """All images of an official split, resized as the processors resize; uint8 [N, 128, 128, 3]."""
    paths = get_train_image_paths() if split == "train" else get_test_image_paths()
    size = (IMAGE_SIZE, IMAGE_SIZE)
    return np.stack(
        [
            np.asarray(Image.open(paths[k]).convert("RGB").resize(size, Image.Resampling.BICUBIC))
            for k in range(len(paths))
        ]
    )


@cache
def easy_vqa_questions(split: str) -> tuple[tuple[Question, ...], ...]:
    """The official questions of a split, grouped by image."""
    found = get_train_questions() if split == "train" else get_test_questions()
    grouped: dict[int, list[Question]] = {}
    for text, answer, image in zip(*found, strict=True):
        grouped.setdefault(image, []).append(Question("easy-vqa", text, answer))
    return tuple(tuple(grouped.get(k, ())) for k in range(max(grouped) + 1))


def easy_row(rng: np.random.Generator) -> Packed:
    """Up to nine questions of one training image, mirrored half of the time."""
    images, questions = easy_vqa_images("train"), easy_vqa_questions("train")
    chosen = int(rng.integers(len(questions)))
    image = images[chosen][:, :: 1 if rng.random() < 0.5 else -1]
    order = rng.permutation(len(questions[chosen]))[:EASY_QUESTIONS]
    asked = [questions[chosen][k] for k in order]
    return Packed(
        image, tuple(Asked(q, (), len(words(q.question)) - 1, q.answer) for q in asked), None
    )


def training_rows(
    step: int, *, scenes: int, easy: int, seed: int, simple: bool, choices: int, letters: bool
) -> list[Packed]:
    """The rows of one step; a function of its arguments alone, so that a run can resume."""
    first = step * scenes + seed * 100_000_000
    objects = (2, 4) if simple else (4, 9)
    rows = [scene_row(first + k, objects, choices, letters) for k in range(scenes)]
    rng = np.random.default_rng((seed, step))
    return rows + [easy_row(rng) for _ in range(easy)]


def pack(rows: Sequence[Packed], layout: PromptLayout, early_weight: float = 0.5) -> Batch:
    """Lay out each row as prefix + questions that see the prefix and themselves only."""
    prefix = len(layout.prefix)
    prefix_positions = layout.prefix_positions()
    sequences, segments, positions, labels, grounds = [], [], [], [], []
    for asked in (row.asked for row in rows):
        ids, segment = list(layout.prefix), [0] * prefix
        position = [prefix_positions]
        label: list[tuple[int, int, float]] = []
        ground: list[tuple[int, int]] = []
        for number, item in enumerate(asked, start=1):
            text = words(item.question.question)
            question = [layout.ids[word] for word in text]
            answer = layout.ids[item.question.answer]
            start = len(ids)
            ids += question + layout.ask + [answer]
            end = len(ids) - 2
            label += [(end, answer, 1.0), (end + 1, layout.eos, 0.2)]
            value = layout.ids[item.value]
            until = text.index("?") if item.question.task == "choice" else len(text)
            label += [
                (start + k, value, early_weight)
                for k in range(item.ready, min(until + 1, len(text)))
            ]
            ground += [(start + k, cell) for k, cell in item.cells]
            count = len(ids) - start
            segment += [number] * count
            position.append(np.tile(prefix_positions.max() + 1 + np.arange(count), (3, 1)))
        sequences.append(ids)
        segments.append(segment)
        positions.append(np.concatenate(position, axis=1))
        labels.append(label)
        grounds.append(ground)

    batch, length = len(rows), -(-max(map(len, sequences)) // 8) * 8
    input_ids = np.full((batch, length), layout.pad)
    segment_ids = np.full((batch, length), -1)
    position_ids = np.zeros((3, batch, length), dtype=np.int64)
    for k, ids in enumerate(sequences):
        input_ids[k, : len(ids)] = ids
        segment_ids[k, : len(ids)] = segments[k]
        position_ids[:, k, : len(ids)] = positions[k]
    query, key = segment_ids[:, :, None], segment_ids[:, None, :]
    causal = np.tril(np.ones((length, length), dtype=bool))
    mask = causal & ((query == key) | ((key == 0) & (query > 0)))
    flat_labels = [(k * length + p, t, w) for k, row in enumerate(labels) for p, t, w in row]
    flat_grounds = [(k * length + p, c) for k, row in enumerate(grounds) for p, c in row]
    places, targets, weights = zip(*flat_labels, strict=True)
    ground_places, ground_cells = zip(*flat_grounds, strict=True) if flat_grounds else ((), ())
    cells = [row.cells for row in rows if row.cells is not None]
    return Batch(
        images=torch.from_numpy(np.stack([row.image for row in rows])),
        input_ids=torch.from_numpy(input_ids),
        position_ids=torch.from_numpy(
            position_ids if layout.multimodal_rope else np.ascontiguousarray(position_ids[0])
        ),
        attention_mask=torch.zeros(mask.shape).masked_fill_(torch.from_numpy(~mask), -1e4)[:, None],
        places=torch.tensor(places),
        targets=torch.tensor(targets),
        weights=torch.tensor(weights),
        ground_places=torch.tensor(ground_places, dtype=torch.long),
        ground_cells=torch.tensor(ground_cells, dtype=torch.long),
        cells=torch.from_numpy(np.stack(cells)) if cells else torch.zeros(0, 64, 5).long(),
        has_cells=torch.tensor([row.cells is not None for row in rows]),
    )


def pixels(images: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
    """What the processor makes of uint8 images [B, 128, 128, 3], without its per-image cost."""
    values = (images.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    if name == "tiny-llava":
        return {"pixel_values": values}
    batch, side = len(images), GRID
    blocks = values.reshape(batch, 3, side, 2, 8, side, 2, 8).permute(0, 2, 5, 3, 6, 1, 4, 7)
    patches = blocks.unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, 2, -1, -1)
    grid = torch.tensor([[1, 2 * side, 2 * side]]).expand(batch, -1)
    return {"pixel_values": patches.reshape(batch * 4 * side * side, -1), "image_grid_thw": grid}
