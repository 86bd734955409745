"""Asking a bundle about images: everything from the picture file to the answer, without torch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from p2p_export.bundle import Bundle
from p2p_export.engines.image_processing import image_processor, open_image
from p2p_export.engines.onnxruntime_backend import OnnxRuntimeOptions
from p2p_export.engines.prompting import Prompter, read_settings
from p2p_export.engines.session import check_backend, start
from p2p_export.engines.token_embedding import TokenEmbedding
from p2p_export.engines.vision_session import VisionSession
from p2p_export.errors import InputError
from p2p_export.manifest import EMBEDDING_FILE, PROCESSOR_FOLDER
from p2p_export.models.positions import (
    mrope_position_ids,
    next_position_ids,
    sequential_position_ids,
)
from p2p_export.models.vision import VisionInfo, image_rows

if TYPE_CHECKING:
    from PIL.Image import Image

IntArray = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Question:
    """Images (files or PIL images) in the order the prompt speaks of them, and the prompt."""

    images: Sequence[str | os.PathLike[str] | Image]
    prompt: str


@dataclass(frozen=True)
class Answer:
    """What the model said. Times are of the batch the question was in, in milliseconds."""

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    visual_tokens: int
    vision_ms: float
    prefill_ms: float
    decode_ms: float

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "token_ids": list(self.token_ids)}


@dataclass(frozen=True)
class PreparedPrompt:
    """One question made ready: token ids [S], and what the image processor made of its images."""

    input_ids: IntArray
    processed: Mapping[str, Array]


@dataclass(frozen=True)
class PromptBatch:
    """Prompts of a batch as `Session.prefill` takes them, padded on the left."""

    inputs_embeds: Array
    position_ids: IntArray
    visual_mask: npt.NDArray[np.bool_]
    attention_mask: IntArray
    vision_ms: float


class BundleAnswerer:
    """A bundle that answers questions about images, greedily and one token at a time.

    Needs NumPy, the bundle's runtime, `pillow`, `tokenizers` and `jinja2`. `dense` asks the dense
    decoder that lies beside the pruned one. Raises `InputError` naming what a bundle lacks.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        backend: str = "ort",
        *,
        dense: bool = False,
        threads: int | None = None,
    ) -> None:
        check_backend(backend)
        bundle = Bundle.open(path)
        self.manifest = bundle.manifest
        folder = bundle.folder / PROCESSOR_FOLDER
        if not bundle.has(EMBEDDING_FILE):
            raise InputError(
                f"the bundle {bundle.folder} has no {EMBEDDING_FILE}, so it takes embeddings and "
                "no prompts; export it without --only decoder"
            )
        tokens = self.manifest.tokens
        self.prompter = Prompter(folder, tokens.image[0] if tokens.image else None)
        self.embedding = TokenEmbedding(bundle.path(EMBEDDING_FILE))
        self._bundle = bundle
        self._options = OnnxRuntimeOptions(threads=threads)
        self._vision: VisionSession | None = None
        self.session = start(bundle, self._options, dense=dense)

    def answer(
        self,
        images: Sequence[str | os.PathLike[str] | Image],
        prompt: str,
        *,
        max_new_tokens: int = 16,
    ) -> Answer:
        """Ask about `images` (none for a text-only prompt).

        Raises `InputError` for an image that cannot be read and for a prompt that has not as many
        places as there are images.
        """
        return self.answer_batch([Question(images, prompt)], max_new_tokens=max_new_tokens)[0]

    def answer_batch(
        self, questions: Sequence[Question], *, max_new_tokens: int = 16
    ) -> list[Answer]:
        """Answers in the order of `questions`, all of them asked at once, padded on the left."""
        if max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {max_new_tokens}; ask for one token at least")
        if not questions:
            return []
        prepared = [self.prepare(question) for question in questions]
        batch = self.batch(prepared)
        began = time.perf_counter()
        logits, state = self.session.prefill(
            batch.inputs_embeds, batch.position_ids, batch.visual_mask, batch.attention_mask
        )
        prefilled = time.perf_counter()
        tokens = self._continue(logits, state, batch.position_ids, max_new_tokens)
        decoded = time.perf_counter()
        return [
            Answer(
                text=self.prompter.decode(row),
                token_ids=tuple(row),
                prompt_tokens=len(each.input_ids),
                visual_tokens=int(self._visual(each.input_ids).sum()),
                vision_ms=batch.vision_ms,
                prefill_ms=1000 * (prefilled - began),
                decode_ms=1000 * (decoded - prefilled),
            )
            for row, each in zip(tokens, prepared, strict=True)
        ]

    def answer_all(
        self, questions: Sequence[Question], *, batch_size: int = 16, max_new_tokens: int = 16
    ) -> Iterator[Answer]:
        """Answers to any number of questions, `batch_size` asked at a time."""
        for first in range(0, len(questions), batch_size):
            yield from self.answer_batch(
                questions[first : first + batch_size], max_new_tokens=max_new_tokens
            )

    def prepare(self, question: Question) -> PreparedPrompt:
        """Read the images and write the prompt out in token ids."""
        text = self.prompter.render(question.prompt, len(question.images))
        processed: Mapping[str, Array] = {}
        rows: list[int] = []
        if question.images:
            vision = self._open_vision()
            opened = [open_image(image) for image in question.images]
            processed = vision.process(opened)
            rows = image_rows(vision.info, processed)
            self._check_limit(sum(rows))
        input_ids = self.prompter.encode(text, rows)
        found = int(self._visual(input_ids).sum())
        if found != sum(rows):
            raise InputError(
                f"the prompt makes {found} visual tokens and the images make {sum(rows)}; the "
                "prompt spells out a placeholder the model keeps for itself, leave it out"
            )
        return PreparedPrompt(input_ids, processed)

    def batch(self, prepared: Sequence[PreparedPrompt]) -> PromptBatch:
        """Run the vision part and pad the prompts on the left to one length."""
        lengths = [len(each.input_ids) for each in prepared]
        shape = len(prepared), max(lengths)
        pad = (*self.manifest.tokens.pad, *self.manifest.tokens.eos, 0)[0]
        input_ids: IntArray = np.full(shape, pad, dtype=np.int64)
        attention_mask: IntArray = np.zeros(shape, dtype=np.int64)
        for i, each in enumerate(prepared):
            input_ids[i, shape[1] - lengths[i] :] = each.input_ids
            attention_mask[i, shape[1] - lengths[i] :] = 1
        visual_mask = self._visual(input_ids) & (attention_mask != 0)
        inputs_embeds = self.embedding(input_ids)
        began = time.perf_counter()
        processed = _joined([each.processed for each in prepared if each.processed])
        if processed:
            inputs_embeds[visual_mask] = self._open_vision().features(processed)
        vision_ms = 1000 * (time.perf_counter() - began)
        positions = self._position_ids(attention_mask, visual_mask, processed)
        return PromptBatch(inputs_embeds, positions, visual_mask, attention_mask, vision_ms)

    def _continue(
        self, logits: Array, state: Any, position_ids: IntArray, max_new_tokens: int
    ) -> list[list[int]]:
        """Greedy decoding until every row has ended; the ending token is left out."""
        ends = set(self.manifest.tokens.eos)
        scheme = self.manifest.positions.scheme
        rows: list[list[int]] = [[] for _ in range(len(logits))]
        ended = [False] * len(rows)
        while True:
            chosen: IntArray = logits.argmax(axis=-1).astype(np.int64)
            for i, token in enumerate(chosen.tolist()):
                ended[i] = ended[i] or token in ends
                if not ended[i]:
                    rows[i].append(token)
                    ended[i] = len(rows[i]) == max_new_tokens
            if all(ended):
                return rows
            position_ids = next_position_ids(scheme, position_ids)
            logits, state = self.session.decode(
                self.embedding(chosen[:, None]), position_ids, state
            )

    def _check_limit(self, visual_tokens: int) -> None:
        """Refuse what the decoder would refuse, before the vision part computes it."""
        limit = self.manifest.limits.max_visual_tokens
        if limit is not None and visual_tokens > limit:
            raise InputError(
                f"the images make {visual_tokens} visual tokens and this bundle was made for at "
                f"most {limit}; give fewer or smaller images, or export with a larger "
                "--max-visual-tokens"
            )

    def _visual(self, input_ids: IntArray) -> npt.NDArray[np.bool_]:
        tokens = self.manifest.tokens
        return np.isin(input_ids, (*tokens.image, *tokens.video))

    def _position_ids(
        self,
        attention_mask: IntArray,
        visual_mask: npt.NDArray[np.bool_],
        processed: Mapping[str, Array],
    ) -> IntArray:
        positions = self.manifest.positions
        if positions.scheme == "sequential":
            return sequential_position_ids(attention_mask)
        return mrope_position_ids(
            attention_mask,
            visual_mask,
            processed.get("image_grid_thw", np.zeros((0, 3), dtype=np.int64)),
            spatial_merge_size=positions.spatial_merge_size or 1,
        )

    def _open_vision(self) -> VisionSession:
        """The vision part, opened when the first image comes."""
        if self._vision is None:
            manifest, folder = self.manifest, self._bundle.folder
            if manifest.vision is None:
                reason = manifest.vision_missing or "it was exported with --only decoder"
                raise InputError(
                    f"the bundle {folder} has no vision part ({reason}), so it answers text-only "
                    "prompts"
                )
            settings = _image_processor_settings(self._bundle)
            info = VisionInfo.from_dict(manifest.vision)
            self._vision = VisionSession(
                self._bundle.path(info.graph), info, image_processor(settings), self._options
            )
        return self._vision


def _image_processor_settings(bundle: Bundle) -> Mapping[str, Any]:
    folder = bundle.folder / PROCESSOR_FOLDER
    nested = read_settings(folder / "processor_config.json").get("image_processor")
    settings = nested or read_settings(folder / "preprocessor_config.json")
    if not settings:
        raise InputError(
            f"the bundle has no image processor settings in {folder}; export it from a model "
            "folder with its preprocessor_config.json or processor_config.json"
        )
    return dict(settings)


def _joined(processed: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
    """Images of several prompts one behind the other; empty when there are none."""
    if not processed:
        return {}
    return {name: np.concatenate([each[name] for each in processed]) for name in processed[0]}
