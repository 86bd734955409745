"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from p2p_export.errors import InputError


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to a temporary file beside `path`, flush it to disk, rename it into place.

    Raises `InputError` when the folder is missing, not writable, or the disk is full; what stood
    at `path` before is then untouched.
    """
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise InputError(
            f"cannot write {path}: {error.strerror}; free space there or name another place"
        ) from None
