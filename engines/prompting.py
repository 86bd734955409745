"""A question and its images -> token ids, with the bundle's tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.engines.chat_template import ChatTemplate
from p2p_export.errors import BundleError, InputError
from p2p_export.json_reading import is_text, read_json

TOKENIZER_FILE = "tokenizer.json"
IntArray = npt.NDArray[np.int64]


class Prompter:
    """The text side of a bundle's processor folder.

    `image_token_id` is the placeholder that stands for an image row. Raises `InputError` when the
    folder holds no tokenizer or a package that reads it is missing.
    """

    def __init__(self, folder: Path, image_token_id: int | None) -> None:
        if not (folder / TOKENIZER_FILE).is_file():
            raise InputError(
                f"the bundle has no {TOKENIZER_FILE} in {folder}, so it cannot read a prompt; "
                "export it from a model folder with its tokenizer and image processor files"
            )
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError:
            raise InputError(
                "prompts need the package `tokenizers`; `pip install tokenizers`"
            ) from None
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        except Exception as error:  # noqa: BLE001 (the package raises bare Exception)
            raise BundleError(f"{folder / TOKENIZER_FILE} cannot be read ({error})") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.special_tokens = _special_tokens(folder)
        template = _chat_template(folder)
        self.chat_template = (
            None if template is None else ChatTemplate(template, self.special_tokens)
        )
        self.image_token = (
            None if image_token_id is None else self._tokenizer.id_to_token(image_token_id)
        )

    def render(self, prompt: str, images: int) -> str:
        """The whole prompt, one placeholder an image.

        Placeholders that `prompt` holds itself stay where they are; otherwise the images come
        first. Without a chat template the prompt is taken as it is. Raises `InputError` unless
        there are as many places as images.
        """
        if not isinstance(prompt, str) or not is_text(prompt):
            raise InputError("the prompt is not UTF-8 text; write it in that encoding")
        placed = self._places(prompt)
        if placed and placed != images:
            raise InputError(
                f"the prompt has {placed} place{_s(placed)} for an image ({self.image_token}) and "
                f"{images or 'no'} image{_s(images)} {'were' if images != 1 else 'was'} given; "
                "give one for each"
            )
        text = prompt
        if self.chat_template is not None:
            slots = [] if placed else [{"type": "image"}] * images
            content = [*slots, {"type": "text", "text": prompt}]
            text = self.chat_template.render([{"role": "user", "content": content}])
        if self._places(text) != images:
            why = (
                "the bundle has no chat template that would make one"
                if self.chat_template is None
                else f"its chat template makes {self._places(text) or 'none'}"
            )
            raise InputError(
                f"{images} image{_s(images)} given and the prompt has no place for "
                f"{'it' if images == 1 else 'them'}: {why}; "
                + (f"write {self.image_token} where an image belongs" if self.image_token else
                   "this model takes no images")
            )  # fmt: skip
        return text

    def encode(self, text: str, image_rows: Sequence[int]) -> IntArray:
        """Token ids [S] of a rendered prompt; the i-th placeholder becomes `image_rows[i]` rows."""
        if image_rows and self.image_token is not None:
            pieces = text.split(self.image_token)
            runs = [self.image_token * rows for rows in image_rows]
            text = "".join(part for pair in zip(pieces, [*runs, ""], strict=True) for part in pair)
        bos = self.special_tokens.get("bos_token")
        begun = bos is not None and text.startswith(bos)
        encoded = self._tokenizer.encode(text, add_special_tokens=not begun)
        return np.array(encoded.ids, dtype=np.int64)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of generated tokens, special ones and outer blanks left out."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True)).strip()

    def _places(self, text: str) -> int:
        return text.count(self.image_token) if self.image_token else 0


def _special_tokens(folder: Path) -> dict[str, str]:
    """`bos_token`, `image_token`, ... -> their text."""
    found = {}
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        for name, value in read_settings(folder / file).items():
            content = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(content, str):
                found[name] = content
    return found


def _chat_template(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    for file in ("chat_template.json", "processor_config.json", "tokenizer_config.json"):
        template = read_settings(folder / file).get("chat_template")
        if isinstance(template, list):
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        if isinstance(template, str):
            return template
    return None


def read_settings(path: Path) -> dict[str, Any]:
    """A JSON object of the processor folder; empty when there is no such file."""
    if not path.is_file():
        return {}
    values = read_json(path, error=BundleError, advice="export the bundle again")
    return values if isinstance(values, dict) else {}


def _s(count: int) -> str:
    return "" if count == 1 else "s"
