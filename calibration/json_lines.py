"""Questions from a JSON-lines file: one object a line, its image a file beside it.

`{"image": "a.png", "question": "...", "answer": "yes"}`, with `choices` (a list of options) and
`task` (a name to report by) where wanted. `answer` may be a list: each of them counts as right.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p_export.calibration.samples import FileImage, Sample
from p2p_export.calibration.scoring import LETTERS, option_letter
from p2p_export.errors import InputError
from p2p_export.json_reading import parse_json, shortened

REQUIRED = ("image", "question", "answer")
OPTIONAL = ("choices", "task")


def json_lines_samples(
    path: Path, *, images: Path | None = None, limit: int | None = None
) -> tuple[Sample, ...]:
    """Read the file; `InputError` names the line of the first thing that cannot be used."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(
            f"no data at {path}; name a JSON-lines file, tiny-vqa or easy-vqa"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"the data {path} cannot be read: {error.strerror}") from None
    reader = _Reader(path, images or path.parent)
    samples: list[Sample] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if limit is not None and len(samples) == limit:
            break
        if line.strip():
            samples.append(reader.sample(number, line))
    if not samples:
        raise InputError(f"{path} holds no questions; give one JSON object a line")
    return tuple(samples)


@dataclass
class _Reader:
    """Turns lines into samples; remembers opened images, since questions share them."""

    path: Path
    folder: Path

    def __post_init__(self) -> None:
        self.root = self.folder.resolve()
        self.opened: dict[Path, FileImage] = {}
        if not self.root.is_dir():
            raise InputError(f"there is no image folder {self.folder}; correct --images")

    def sample(self, number: int, line: str) -> Sample:
        where = f"{self.path} line {number}"
        entry = _parse(line, where)
        choices = _texts(entry.get("choices", []), "choices", where)
        if len(choices) > len(LETTERS):
            raise InputError(
                f"{where}: `choices` lists {len(choices)}; {len(LETTERS)} are possible"
            )
        answers = _answers(entry["answer"], choices, where)
        question = _text(entry["question"], "question", where)
        return Sample(
            id=f"line {number}",
            question="\n".join([question, *_listed(choices)]),
            answers=answers,
            task=_text(entry.get("task", "all"), "task", where),
            choices=choices,
            image=self.image(_text(entry["image"], "image", where), where),
        )

    def image(self, name: str, where: str) -> FileImage:
        try:
            path = (self.root / name).resolve()
        except (ValueError, OSError):
            raise InputError(f"{where}: image {name!r} is not a path; correct it") from None
        if not path.is_relative_to(self.root):
            raise InputError(
                f"{where}: image {name!r} lies outside {self.folder}; move it there or name its "
                "folder with --images"
            )
        if path not in self.opened:
            self.opened[path] = FileImage.open(path, where=where)
        return self.opened[path]


def _parse(line: str, where: str) -> dict[str, Any]:
    entry = parse_json(line, where=where, advice="give one JSON object a line")
    if not isinstance(entry, dict):
        raise InputError(f'{where} is not a JSON object; write {{"image": …, "question": …}}')
    unknown = [name for name in entry if name not in REQUIRED + OPTIONAL]
    if unknown:
        raise InputError(
            f"{where}: unknown field {shortened(unknown[0])!r}; the fields are "
            f"{', '.join(REQUIRED + OPTIONAL)}"
        )
    missing = [name for name in REQUIRED if name not in entry]
    if missing:
        raise InputError(f"{where}: the field {missing[0]!r} is missing; add it")
    return entry


def _text(value: Any, field: str, where: str) -> str:
    if not isinstance(value, str) or not any(map(_is_visible, value)):
        raise InputError(
            f"{where}: `{field}` is {shortened(repr(value))} and must be a text that is not empty"
        )
    return value


def _is_visible(character: str) -> bool:
    """Not a blank and not a control or format character: no answer could consist of those."""
    return unicodedata.category(character)[0] not in "CZ"


def _texts(value: Any, field: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(
            f"{where}: `{field}` is {shortened(repr(value))} and must be a list of texts"
        )
    return tuple(_text(item, field, where) for item in value)


def _answers(value: Any, choices: tuple[str, ...], where: str) -> tuple[str, ...]:
    answers = _texts(value, "answer", where) if isinstance(value, list) else ()
    answers = answers or (_text(value, "answer", where),)
    if not choices:
        return answers
    letters = [option_letter(answer, choices) for answer in answers]
    if None in letters:
        wrong = shortened(answers[letters.index(None)])
        raise InputError(
            f"{where}: the answer {wrong!r} is neither one of the choices nor the letter of one"
        )
    return tuple(letter for letter in letters if letter is not None)


def _listed(choices: tuple[str, ...]) -> list[str]:
    if not choices:
        return []
    options = [f"{chr(ord('A') + place)}. {choice}" for place, choice in enumerate(choices)]
    return [*options, "Answer with the option's letter from the given choices directly."]
