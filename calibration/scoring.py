"""Whether an answer is right.

| variant | rule |
|---|---|
| `exact-match` | equal to a right answer once both are lower-cased, without punctuation |
| `choice-letter` | names the right option: by letter, as `B`, `(b)` or `B. red`, or by its text |
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence
from typing import Literal

from p2p_export.calibration.samples import Sample

Variant = Literal["exact-match", "choice-letter"]

LETTERS = string.ascii_uppercase
_LONE_LETTER = re.compile(r"^\(?([A-Za-z])[).:]?$")
_LEADING_LETTER = re.compile(r"^(?:\(([A-Za-z])\)|([A-Za-z])[).:])\s")


def variant(sample: Sample) -> Variant:
    """The rule a sample is scored by."""
    return "choice-letter" if sample.choices else "exact-match"


def is_correct(sample: Sample, answer: str) -> bool:
    """Whether `answer`, as the model wrote it, is one of the sample's right answers."""
    if variant(sample) == "choice-letter":
        letter = option_letter(answer, sample.choices)
        right = {option_letter(expected, sample.choices) for expected in sample.answers}
        return letter is not None and letter in right
    return normalize(answer) in {normalize(expected) for expected in sample.answers}


def normalize(text: str) -> str:
    """Lower-case, no punctuation, single spaces; a text of punctuation alone stays as it is."""
    text = text.strip().lower()
    kept = [c for c in text if not unicodedata.category(c).startswith("P")]
    return " ".join("".join(kept).split()) or text


def option_letter(answer: str, choices: Sequence[str]) -> str | None:
    """The letter (upper case) of the option that `answer` names, or None.

    A lone letter (`b`, `(B)`, `B.`) is the letter of an option; else a text that is word for word
    an option names it; else a letter in front of more text (`B. red`) counts.
    """
    answer = answer.strip()
    lone = _within(_LONE_LETTER.match(answer), choices)
    if lone is not None:
        return lone
    normalized = [normalize(choice) for choice in choices]
    if normalized.count(normalize(answer)) == 1:
        return LETTERS[normalized.index(normalize(answer))]
    return _within(_LEADING_LETTER.match(answer), choices)


def _within(match: re.Match[str] | None, choices: Sequence[str]) -> str | None:
    if match is None:
        return None
    letter = next(group for group in match.groups() if group).upper()
    return letter if LETTERS.index(letter) < len(choices) else None
