"""A question about an image, and the image behind it: loaded when asked, known by its content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL import Image, ImageOps, UnidentifiedImageError

from p2p_export.errors import InputError

# What Pillow raises for a file that is no image, is cut short, or is dangerously large.
UNREADABLE = (
    UnidentifiedImageError,
    OSError,
    SyntaxError,
    ValueError,
    Image.DecompressionBombError,
)


class ImageSource(Protocol):
    """An image that is not in memory yet."""

    @property
    def image_id(self) -> str:
        """sha256 of the content: two samples share it exactly when they show the same image."""
        ...

    def load(self) -> Image.Image:
        """The image, RGB; `InputError` when it cannot be decoded."""
        ...


@dataclass(frozen=True)
class Sample:
    """One question, with the answers that count as right.

    `question` is the text as the model reads it, options included. `choices` are the options of a
    multiple-choice question; its answer is then an option's letter.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    task: str
    image: ImageSource
    choices: tuple[str, ...] = ()

    @property
    def image_id(self) -> str:
        return self.image.image_id


@dataclass(frozen=True)
class FileImage:
    """An image file; `image_id` is the sha256 of its bytes, `where` names it in errors."""

    path: Path
    image_id: str
    where: str

    @classmethod
    def open(cls, path: Path, *, where: str) -> FileImage:
        """Hash the file and check its header; `InputError` when it is missing or no image."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise InputError(
                f"{where}: there is no image {path}; correct the path or name the folder with "
                "--images"
            ) from None
        except OSError as error:
            raise InputError(
                f"{where}: the image {path} cannot be read: {error.strerror}"
            ) from None
        image = cls(path, hashlib.sha256(content).hexdigest(), where)
        try:
            with Image.open(path) as opened:
                opened.verify()
        except UNREADABLE as error:
            raise image._unreadable(error) from None
        return image

    def load(self) -> Image.Image:
        try:
            with Image.open(self.path) as opened:
                return ImageOps.exif_transpose(opened).convert("RGB")
        except UNREADABLE as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: BaseException) -> InputError:
        return InputError(
            f"{self.where}: {self.path} is not an image that can be read "
            f"({type(error).__name__}); replace the file or leave the line out"
        )
