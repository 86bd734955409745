"""A temporary folder whose maker can be seen to live: it holds a lock on the folder itself.

A killed process leaves its folder and loses its lock, so the next one may remove it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # no such locks on this system: nothing is taken for abandoned
    fcntl = None  # type: ignore[assignment]


@contextmanager
def owned_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new empty folder in `parent`, named `prefix` and some letters; gone behind the body unless
    the body renamed it. OSError when `parent` does not let us."""
    path, lock = _locked_folder(parent, prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove what `owned_folder` left in `parent` where its process was killed."""
    for path in parent.iterdir():
        if path.name.startswith(prefix) and path.is_dir() and not path.is_symlink():
            lock = _lock(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        lock = os.open(path, os.O_RDONLY) if fcntl is None else _lock(path)
        # Another process may have taken it for abandoned before we had the lock.
        if lock is not None and path.is_dir():
            return path, lock
        if lock is not None:
            os.close(lock)


def _lock(path: Path) -> int | None:
    """A handle that holds the lock, or None when it is held elsewhere or cannot be had."""
    if fcntl is None:
        return None
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
