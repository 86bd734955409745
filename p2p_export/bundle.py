"""The bundle on disk: opened strictly, written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from p2p_export.errors import BundleError, InputError
from p2p_export.json_reading import read_json
from p2p_export.manifest import MANIFEST_FILE, BundleFile, Manifest
from p2p_export.manifest_schema import FORMAT

Verify = Literal["sizes", "sha256"]

CHUNK = 1 << 20
# Disk full, over quota, file too large: errors of space that say what to do.
_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Bundle:
    """A bundle whose manifest was read and whose files are all there."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: Verify = "sizes") -> Bundle:
        """Read the manifest and look at every file it names.

        `verify`: "sizes" compares each file's size; "sha256" reads each file and compares its
        content too. `folder` is absolute, so a bundle stays usable from another working folder.
        Raises `BundleError` with one sentence for anything that is missing, damaged or unknown.
        """
        folder = Path(path).absolute()
        manifest = read_manifest(folder)
        for name, expected in manifest.files.items():
            _check_file(folder, name, expected, verify)
        return cls(folder, manifest)

    def path(self, name: str) -> Path:
        """Where the file `name` of the manifest lies; `BundleError` when it lists none such."""
        if name not in self.manifest.files:
            raise BundleError(f"the bundle {self.folder} holds no {name}")
        return self.folder / name

    def has(self, name: str) -> bool:
        return name in self.manifest.files


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the bundle in `folder`, without looking at its other files."""
    path = folder / MANIFEST_FILE
    if not folder.exists():
        raise BundleError(f"no bundle at {folder}; make one with `p2p-export --plan plan.json`")
    if not path.is_file():
        raise BundleError(f"{folder} is no bundle: it holds no {MANIFEST_FILE}")
    _check_inside(folder, MANIFEST_FILE)
    document = read_json(path, error=BundleError, advice="copy or export the bundle again")
    if not isinstance(document, dict) or "format" not in document:
        raise BundleError(f"{path} is no manifest: it has no `format` ({FORMAT!r} is expected)")
    return Manifest.from_dict(document, where=str(path))


def differing_content(bundle: Bundle) -> str | None:
    """The first file whose sha256 is not the manifest's, or None."""
    return next(
        (
            name
            for name, expected in bundle.manifest.files.items()
            if sha256_of(bundle.folder / name) != expected.sha256
        ),
        None,
    )


def describe_files(folder: Path) -> dict[str, BundleFile]:
    """Every file below `folder` but the manifest, by its name relative to `folder`."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != MANIFEST_FILE:
            files[name] = BundleFile(sha256=sha256_of(path), size=path.stat().st_size)
    return files


def sha256_of(path: Path) -> str:
    """Hexadecimal sha256 of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def writing_bundle(output: str | os.PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """A new empty folder beside `output` that becomes `output` when the body ends well.

    What stands at `output` before stays as it is until then, and stays for good when the body
    raises; the new folder and all in it are removed in that case. Raises `InputError` when
    `output` is in use (a file; or a folder without `force`; or, with `force`, a folder that is
    neither a bundle nor empty) and when the disk is full.
    """
    output = Path(output).absolute()
    check_output(output, force=force)
    with _no_space_said(output):
        temporary = Path(tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}."))
    try:
        with _no_space_said(output):
            yield temporary
            temporary.chmod(0o755)
            _flush(temporary)
            _put_in_place(temporary, output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_output(output: Path, *, force: bool) -> None:
    """Raise `InputError` unless a bundle may be written to `output`; called before long work."""
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
    if not output.parent.is_dir():
        raise InputError(f"there is no folder {output.parent}; make it or name another output")


def _check_file(folder: Path, name: str, expected: BundleFile, verify: Verify) -> None:
    path = folder / name
    if not path.is_file():
        raise BundleError(f"the bundle {folder} lacks its file {name}; export the bundle again")
    _check_inside(folder, name)
    size = path.stat().st_size
    if size != expected.size:
        raise BundleError(
            f"{name} in the bundle {folder} has {size} bytes and the manifest says "
            f"{expected.size}; copy or export the bundle again"
        )
    if verify == "sha256" and sha256_of(path) != expected.sha256:
        raise BundleError(
            f"the content of {name} in the bundle {folder} is not what was written (its sha256 "
            "differs); copy or export the bundle again"
        )


def _check_inside(folder: Path, name: str) -> None:
    if folder.resolve() not in (folder / name).resolve().parents:
        raise BundleError(
            f"{name} in the bundle {folder} leads outside of it; do not use this bundle"
        )


def _put_in_place(temporary: Path, output: Path) -> None:
    """Rename the new folder to `output`; an old bundle there is set aside first, then deleted."""
    aside = None
    if output.is_dir():
        aside = Path(tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}.old."))
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
