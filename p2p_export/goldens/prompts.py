"""The prompts of a bundle's goldens: one through the model's own processor, and seeded random rows.

The random ones put images where mistakes show: at different places in the rows of a batch, at the
very end (a visual row decides the answer), and nowhere. The rows of a batch have equally many text
tokens, so that no cache holds padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.engines.goldens import GoldenPrompt
from p2p_export.errors import InputError
from p2p_export.models import DecoderSpec, Family
from p2p_export.models.checkpoint import Checkpoint, load_processor
from p2p_export.models.positions import mrope_position_ids, sequential_position_ids
from p2p_export.plan import Newline

SEED = 20261
QUESTION = "What is in the image?"
IMAGE_SIDE = 96
# What a processor raises when it cannot prepare our picture and question.
PROCESSOR_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError)


def random_prompts(model: Any, family: Family) -> list[GoldenPrompt]:
    """Seeded rows, of the size the model's own embeddings have."""
    spec = family.decoder_spec(model.config)
    decoder: Any = family.decoder(model)
    table = decoder.get_input_embeddings().weight
    scale = float(table.detach().float().square().mean().sqrt())
    generator = np.random.default_rng(SEED)
    rows = [
        # One character a row: t is text, v visual.
        ["ttvvvvttttt", "tttttttvvvv"],
        ["tttvvvv"],
        ["tvvvvt", "tvvvvt"],
        ["ttttt"],
    ]
    return [_random_prompt(texts, spec, scale, generator) for texts in rows]


@dataclass(frozen=True)
class PicturePrompt:
    """A picture and a question, prepared by a checkpoint's processor and transformers' own model.

    `processed` is what the processor returned, and `rows` [rows,D] float32 are the image rows that
    transformers put into the prompt.
    """

    prompt: GoldenPrompt
    processed: Mapping[str, npt.NDArray[Any]]

    @property
    def rows(self) -> npt.NDArray[np.float32]:
        rows: npt.NDArray[np.float32] = self.prompt.inputs_embeds[self.prompt.visual_mask]
        return rows


def picture_prompt(
    model: Any, checkpoint: Checkpoint, *, newline: Newline, trust_remote_code: bool = False
) -> PicturePrompt | None:
    """The same picture and question each time, or None when the checkpoint has no processor that
    can prepare them."""
    try:
        processor = load_processor(checkpoint, trust_remote_code=trust_remote_code)
        inputs = processor(images=picture(), text=_question(processor), return_tensors="pt")
    except (InputError, *PROCESSOR_ERRORS):
        return None
    family = checkpoint.family
    embeds, positions = _decoder_inputs(model, family, inputs)
    processed = {name: value.numpy() for name, value in inputs.items()}
    mask = processed["attention_mask"].astype(np.int64)
    visual = family.visual_mask(processed["input_ids"], model.config, processed, newline=newline)
    if positions is None:
        positions = sequential_position_ids(mask)
    return PicturePrompt(GoldenPrompt(embeds, positions, visual), processed)


def picture() -> Any:
    """A PIL image with edges and shades, the same everywhere."""
    from PIL import Image

    across, down = np.meshgrid(np.arange(IMAGE_SIDE), np.arange(IMAGE_SIDE))
    shades = np.stack([across * 2, down * 2, (across // 16 + down // 16) % 2 * 200], axis=-1)
    return Image.fromarray(shades.astype(np.uint8))


def _question(processor: Any) -> str:
    if getattr(processor, "chat_template", None):
        content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
        text: str = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        return text
    return f"{processor.image_token}\n{QUESTION}"


def _decoder_inputs(
    model: Any, family: Family, inputs: Any
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64] | None]:
    """What transformers hands its text model: embeddings with the image in them, position ids."""
    import torch

    seen: dict[str, Any] = {}

    def look(_module: Any, _args: Any, kwargs: Any) -> None:
        seen.update(kwargs)

    handle = family.decoder(model).register_forward_pre_hook(look, with_kwargs=True)
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        handle.remove()
    embeds = np.ascontiguousarray(seen["inputs_embeds"].float().numpy())
    positions = seen.get("position_ids")
    if positions is None:
        return embeds, None
    # Qwen's may carry the text positions as a fourth axis in front.
    if positions.ndim == 3:
        positions = positions[-3:]
    return embeds, np.ascontiguousarray(positions.numpy(), dtype=np.int64)


def _random_prompt(
    rows: list[str], spec: DecoderSpec, scale: float, generator: np.random.Generator
) -> GoldenPrompt:
    visual = np.array([[character == "v" for character in row] for row in rows])
    shape = (*visual.shape, spec.hidden_size)
    embeds = (generator.standard_normal(shape) * scale).astype(np.float32)
    ones = np.ones(visual.shape, dtype=np.int64)
    if spec.position_axes == 1:
        return GoldenPrompt(embeds, sequential_position_ids(ones), visual)
    # Every run of visual rows is an image two patches high.
    grids = np.array([[1, 2, count // 2] for count in visual.sum(axis=1).tolist() if count])
    positions = mrope_position_ids(ones, visual, grids.reshape(-1, 3), spatial_merge_size=1)
    return GoldenPrompt(embeds, positions, visual)
