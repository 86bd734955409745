"""The bundle on disk, opened strictly."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from p2p_export.errors import BundleError
from p2p_export.json_reading import read_json, shortened
from p2p_export.manifest import MANIFEST_FILE, BundleFile, Manifest
from p2p_export.manifest_schema import FORMAT

Verify = Literal["sizes", "sha256"]

CHUNK = 1 << 20


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
        folder = _folder(path)
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
    try:
        there = folder.exists()
    except (OSError, ValueError):  # longer than a path may be, or a NUL in it
        there = False
    if not there:
        raise BundleError(
            f"no bundle at {shortened(str(folder), 300)}; make one with `p2p-export --plan "
            "plan.json`"
        )
    if not path.is_file():
        raise BundleError(f"{folder} is no bundle: it holds no {MANIFEST_FILE}")
    _check_inside(folder, MANIFEST_FILE)
    document = read_json(path, error=BundleError, advice="copy or export the bundle again")
    if not isinstance(document, dict) or "format" not in document:
        raise BundleError(f"{path} is no manifest: it has no `format` ({FORMAT!r} is expected)")
    return Manifest.from_dict(document, where=str(path))


def _folder(path: Any) -> Path:
    try:
        return Path(path).absolute()
    except TypeError:
        raise BundleError(
            f"a bundle is named by its path, a text, and not by {shortened(repr(path))}"
        ) from None


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
