"""Reading JSON that others wrote: whatever is wrong with it is one of our errors, never a crash.

Python's parser takes more than JSON has (NaN, numbers that become infinite, halves of surrogate
pairs) and fails in many ways on what is made to break it; what it returns here can be compared,
written as UTF-8 and walked by a recursive function.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from p2p_export.errors import InputError

# Far above any file of ours or of a checkpoint, far below what recursion can walk.
DEEPEST = 100


def read_json(
    path: str | os.PathLike[str], *, error: type[InputError] = InputError, advice: str
) -> Any:
    """The document at `path`; `error` names the file and ends in `advice`.

    A file that is not there is FileNotFoundError: only the caller knows what it means.
    """
    shown = shortened(str(path))
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise
    except OSError as failure:
        raise error(f"{shown} cannot be read: {failure.strerror}; {advice}") from None
    except ValueError:  # a NUL or half a surrogate pair in the name
        raise error(f"{shown!r} is no path; {advice}") from None
    return parse_json(content, where=shown, error=error, advice=advice)


def parse_json(
    content: str | bytes, *, where: str, error: type[InputError] = InputError, advice: str
) -> Any:
    """The document in `content`; `error` with one sentence about `where` when it is not sound."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        document = json.loads(text)
    except UnicodeDecodeError as failure:
        reason = f"byte {failure.start} is not UTF-8"
    except json.JSONDecodeError as failure:
        reason = f"{failure.msg}, line {failure.lineno} column {failure.colno}"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError:  # Python's own guard against numbers that take minutes to convert
        reason = "it holds a number of too many digits"
    else:
        unsound = _unsound(document)
        if unsound is None:
            return document
        reason = unsound
    raise error(f"{where} is not JSON ({reason}); {advice}")


def shortened(text: str, longest: int = 120) -> str:
    """`text` for a message: its middle left out when it is too long to read."""
    if len(text) <= longest:
        return text
    half = (longest - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def _unsound(document: Any) -> str | None:
    """What of a parsed document JSON does not have or we do not follow, or None. Iterative: a
    document may be nested more deeply than Python recurses."""
    level = [document]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for value in level:
            if isinstance(value, str) and not is_text(value):
                return "a text holds half a surrogate pair"
            if isinstance(value, float) and not math.isfinite(value):
                return "it holds a number that is not finite"
            if isinstance(value, dict):
                below += value.keys()
                below += value.values()
            elif isinstance(value, list):
                below += value
        if not below:
            return None
        level = below
    return "it is nested too deeply"


def is_text(value: str) -> bool:
    """Whether `value` can be written as UTF-8; Python reads other bytes as halves of pairs."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
