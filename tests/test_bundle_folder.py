"""A bundle on disk is whole or absent, and opens only as it was written."""

from __future__ import annotations

import errno
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exported_bundles import change_manifest
from test_bundle_manifest import MANIFEST

from p2p_export.bundle import Bundle, describe_files, differing_content
from p2p_export.bundle_writing import writing_bundle
from p2p_export.errors import BundleError, InputError
from p2p_export.manifest import MANIFEST_FILE


def fill(folder: Path, content: bytes = b"graph bytes!") -> None:
    """A bundle as far as files go."""
    (folder / "decoder.onnx").write_bytes(content)
    (folder / "golden").mkdir()
    (folder / "golden" / "prefill.inputs.json").write_text("[]")
    manifest = replace(MANIFEST, files=describe_files(folder))
    (folder / MANIFEST_FILE).write_bytes(manifest.to_json())


def write_and_fail(output: Path, failure: BaseException, *, force: bool = False) -> None:
    with writing_bundle(output, force=force) as folder:
        fill(folder, b"other")
        raise failure


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    with writing_bundle(tmp_path / "bundle") as folder:
        fill(folder)
    return tmp_path / "bundle"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_written_bundle_opens_and_nothing_is_left_beside_it(bundle: Path) -> None:
    opened = Bundle.open(bundle, verify="sha256")
    assert names(bundle.parent) == ["bundle"]
    assert sorted(opened.manifest.files) == ["decoder.onnx", "golden/prefill.inputs.json"]
    assert opened.path("decoder.onnx").read_bytes() == b"graph bytes!"


@pytest.mark.parametrize("failure", [ValueError("half-way"), KeyboardInterrupt()])
def test_an_error_half_way_leaves_nothing(tmp_path: Path, failure: BaseException) -> None:
    with pytest.raises(type(failure)):
        write_and_fail(tmp_path / "bundle", failure)
    assert names(tmp_path) == []


def test_an_error_half_way_leaves_the_old_bundle(bundle: Path) -> None:
    with pytest.raises(ValueError, match="half-way"):
        write_and_fail(bundle, ValueError("half-way"), force=True)
    assert Bundle.open(bundle, verify="sha256").path("decoder.onnx").read_bytes() == b"graph bytes!"
    assert names(bundle.parent) == ["bundle"]


def test_force_replaces_the_old_bundle_whole(bundle: Path) -> None:
    with writing_bundle(bundle, force=True) as folder:
        fill(folder, b"other")
    assert Bundle.open(bundle, verify="sha256").path("decoder.onnx").read_bytes() == b"other"
    assert names(bundle.parent) == ["bundle"]


def test_an_output_in_use_is_refused_before_anything_is_written(bundle: Path) -> None:
    with pytest.raises(InputError, match="--force"), writing_bundle(bundle):
        pytest.fail("the body must not run")
    assert names(bundle.parent) == ["bundle"]


def test_force_never_replaces_a_folder_that_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.png").touch()
    with (
        pytest.raises(InputError, match="holds files and no bundle"),
        writing_bundle(tmp_path / "photos", force=True),
    ):
        pytest.fail("the body must not run")
    assert names(tmp_path / "photos") == ["one.png"]


@pytest.mark.parametrize("force", [False, True])
def test_a_file_in_the_way_is_refused(tmp_path: Path, force: bool) -> None:
    (tmp_path / "bundle").write_text("notes")
    with (
        pytest.raises(InputError, match="in the way"),
        writing_bundle(tmp_path / "bundle", force=force),
    ):
        pytest.fail("the body must not run")
    assert (tmp_path / "bundle").read_text() == "notes"


def test_a_missing_parent_folder_is_said(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="there is no folder"),
        writing_bundle(tmp_path / "no" / "bundle"),
    ):
        pytest.fail("the body must not run")


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    with writing_bundle(tmp_path / "bundle") as folder:
        fill(folder)
    Bundle.open(tmp_path / "bundle")
    assert names(tmp_path) == ["bundle"]


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no space left"):
        write_and_fail(tmp_path / "bundle", OSError(errno.ENOSPC, "No space left on device"))
    assert names(tmp_path) == []


def test_a_file_the_system_will_not_let_grow_is_said(tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys\n"
        "from p2p_export.bundle_writing import writing_bundle\n"
        "from p2p_export.errors import InputError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    with writing_bundle(sys.argv[1]) as folder:\n"
        "        (folder / 'weights').write_bytes(bytes(100_000))\n"
        "except InputError as error:\n"
        "    sys.exit(str(error))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "bundle")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr.startswith("no space left to write")
    assert names(tmp_path) == []


def remove(folder: Path) -> None:
    (folder / "decoder.onnx").unlink()


def truncate(folder: Path) -> None:
    (folder / "decoder.onnx").write_bytes(b"graph")


def link_outside(folder: Path) -> None:
    (folder.parent / "elsewhere").write_bytes(b"graph bytes!")
    (folder / "decoder.onnx").unlink()
    (folder / "decoder.onnx").symlink_to(folder.parent / "elsewhere")


def link_folder_outside(folder: Path) -> None:
    (folder / "golden").rename(folder.parent / "golden")
    (folder / "golden").symlink_to(folder.parent / "golden")


def no_json(folder: Path) -> None:
    (folder / MANIFEST_FILE).write_text("{")


def no_manifest(folder: Path) -> None:
    (folder / MANIFEST_FILE).unlink()


def later_format(folder: Path) -> None:
    change_manifest(folder, lambda document: document.update(format="p2p-bundle/9"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (remove, "lacks its file decoder.onnx"),
        (truncate, "has 5 bytes and the manifest says 12"),
        (link_outside, "leads outside"),
        (link_folder_outside, "leads outside"),
        (no_json, "is not JSON"),
        (no_manifest, "is no bundle"),
        (later_format, "p2p-bundle/9"),
    ],
)
def test_a_damaged_bundle_never_opens(bundle: Path, damage: Any, said: str) -> None:
    damage(bundle)
    with pytest.raises(BundleError, match=said):
        Bundle.open(bundle)


def test_a_changed_byte_is_seen_when_content_is_verified(bundle: Path) -> None:
    (bundle / "decoder.onnx").write_bytes(b"Graph bytes!")
    assert differing_content(Bundle.open(bundle)) == "decoder.onnx"
    with pytest.raises(BundleError, match="sha256"):
        Bundle.open(bundle, verify="sha256")


def test_no_bundle_at_all_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="p2p-export --plan"):
        Bundle.open(tmp_path / "bundle")


def test_a_file_the_manifest_does_not_list_is_not_the_bundles(bundle: Path) -> None:
    (bundle / "stray").touch()
    with pytest.raises(BundleError, match="holds no stray"):
        Bundle.open(bundle).path("stray")
