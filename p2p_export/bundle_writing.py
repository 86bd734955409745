"""The bundle on disk, written whole or not at all, in place of nothing but a bundle."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from p2p_export.errors import InputError
from p2p_export.json_reading import is_text, read_json, shortened
from p2p_export.manifest import MANIFEST_FILE
from p2p_export.owned_folder import owned_folder, remove_abandoned

# Disk full, over quota, file too large: errors of space that say what to do.
_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def writing_bundle(output: str | os.PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """A new empty folder beside `output` that becomes `output` when the body ends well.

    What stands at `output` before stays as it is until then, and stays for good when the body
    raises; the new folder and all in it are removed in that case. Raises `InputError` when
    `output` is in use (a file; or a folder without `force`; or, with `force`, a folder that holds
    anything but a bundle) and when the disk is full. What an export to the same place left when it
    was killed is removed.
    """
    output = Path(output).absolute()
    check_output(output, force=force)
    with _no_space_said(output):
        _remove_abandoned(output)
        with owned_folder(output.parent, _prefix(output)) as temporary:
            yield temporary
            temporary.chmod(0o755)
            _flush(temporary)
            # Once more: exports take minutes, and somebody may have put a file there meanwhile.
            check_output(output, force=force)
            _put_in_place(temporary, output)


def check_output(output: Path, *, force: bool) -> None:
    """Raise `InputError` unless a bundle may be written to `output`; called before long work."""
    if not is_text(str(output)):
        raise InputError(f"{output} is no UTF-8 path, and ONNX Runtime opens no other; name one")
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise InputError(f"{output} is in the way and no folder; name another output")
    if output.is_dir() and any(output.iterdir()):
        if not force:
            raise InputError(
                f"the output folder {output} is in use; name another, or replace the bundle there "
                "with --force"
            )
        if not (output / MANIFEST_FILE).is_file():
            raise InputError(
                f"{output} holds files and no bundle, so --force does not replace it; name "
                "another output"
            )
        foreign = _foreign_entry(output)
        if foreign is not None:
            raise InputError(
                f"{output} holds {shortened(foreign)}, which is no file of the bundle there and "
                "which --force would delete; move it away or name another output"
            )
    if not output.parent.is_dir():
        raise InputError(f"there is no folder {output.parent}; make it or name another output")


def _foreign_entry(folder: Path) -> str | None:
    """The first thing below `folder` that its manifest does not list, or None."""
    listed = _listed_files(folder)
    folders = {str(parent) for name in listed for parent in PurePosixPath(name).parents}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        known = folders if path.is_dir() and not path.is_symlink() else listed
        if name not in known:
            return name
    return None


def _listed_files(folder: Path) -> set[str]:
    """Files of the bundle in `folder`, as any version lists them; damaged ones may be replaced."""
    remedy = "name another output, or remove the folder yourself"
    document = read_json(folder / MANIFEST_FILE, advice=f"so --force stops; {remedy}")
    files = document.get("files") if isinstance(document, dict) else None
    if not isinstance(files, dict):
        raise InputError(
            f"{folder / MANIFEST_FILE} lists no files, so --force cannot tell which are the "
            f"bundle's; {remedy}"
        )
    return {MANIFEST_FILE, *files}


def _prefix(output: Path) -> str:
    return f".{output.name}.p2p-export."


def _old_prefix(output: Path) -> str:
    return f".{output.name}.p2p-old."


def _remove_abandoned(output: Path) -> None:
    """What killed exports left beside `output`; an old bundle they had set aside only where the new
    one is in place."""
    remove_abandoned(output.parent, _prefix(output))
    if output.is_dir():
        remove_abandoned(output.parent, _old_prefix(output))


def _put_in_place(temporary: Path, output: Path) -> None:
    """Rename the new folder to `output`; an old bundle there is set aside first, then deleted."""
    aside = None
    if output.is_dir():
        aside = Path(tempfile.mkdtemp(dir=output.parent, prefix=_old_prefix(output)))
        output.replace(aside)
    try:
        temporary.replace(output)
    except OSError:
        if aside is not None:
            aside.replace(output)
        raise
    _flush_entry(output.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        _flush_entry(path)
    _flush_entry(folder)


def _flush_entry(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _no_space_said(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _SPACE:
            raise InputError(
                f"no space left to write {output}; free some or name another place"
            ) from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise InputError(
                f"cannot write {output}: {error.strerror}; name another place"
            ) from None
        raise
