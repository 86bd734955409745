"""Where a command may write its result: never over what it reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from p2p_export.errors import InputError


def check_output_file(
    output: str | os.PathLike[str], inputs: Mapping[str, str | os.PathLike[str] | None]
) -> None:
    """Raise `InputError` unless a file may be written to `output`; called before long work.

    `inputs` are paths by what they are called in the sentence; None is an input not given, and a
    folder stands for all files in it.
    """
    output = Path(output)
    try:
        there = output.exists()
        if output.is_dir():
            raise InputError(f"{output} is a folder; name a file to write")
        if not output.absolute().parent.is_dir():
            raise InputError(f"there is no folder for {output}; make it or name another file")
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror}; name another") from None
    if not there:
        return
    for what, path in inputs.items():
        if path is None or not Path(path).exists():
            continue
        if Path(path).is_dir():
            if Path(path).resolve() in output.resolve().parents:
                raise InputError(f"{output} is a file of {what} {path}; name another output")
        elif output.samefile(path):
            raise InputError(f"{output} is {what} itself; name another output")
