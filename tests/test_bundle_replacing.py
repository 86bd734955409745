"""--force replaces a bundle and nothing else; a killed export leaves nothing that stays."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_bundle_folder import bundle, fill, names

from p2p_export.bundle import Bundle
from p2p_export.bundle_writing import check_output, writing_bundle
from p2p_export.errors import InputError
from p2p_export.owned_folder import owned_folder, remove_abandoned

__all__ = ["bundle"]


def a_file(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")


def a_file_below(folder: Path) -> None:
    (folder / "golden" / "mine").mkdir()
    (folder / "golden" / "mine" / "notes.txt").write_text("mine")


def an_empty_folder(folder: Path) -> None:
    (folder / "later").mkdir()


def a_link_to_a_folder(folder: Path) -> None:
    (folder / "link").symlink_to(folder.parent)


@pytest.mark.parametrize(
    ("put", "name"),
    [
        (a_file, "notes.txt"),
        (a_file_below, "golden/mine"),
        (an_empty_folder, "later"),
        (a_link_to_a_folder, "link"),
    ],
)
def test_what_the_bundle_does_not_list_is_never_deleted(
    bundle: Path, put: Callable[[Path], None], name: str
) -> None:
    put(bundle)
    before = sorted(bundle.rglob("*"))
    with pytest.raises(InputError, match=name), writing_bundle(bundle, force=True):
        pytest.fail("the body must not run")
    assert sorted(bundle.rglob("*")) == before


def export_while_a_file_comes(bundle: Path) -> None:
    with writing_bundle(bundle, force=True) as new:
        fill(new, b"other")
        a_file(bundle)


def test_a_file_that_comes_while_the_export_runs_is_kept(bundle: Path) -> None:
    with pytest.raises(InputError, match=r"notes\.txt"):
        export_while_a_file_comes(bundle)
    assert (bundle / "notes.txt").read_text() == "mine"
    assert Bundle.open(bundle).path("decoder.onnx").read_bytes() == b"graph bytes!"
    assert names(bundle.parent) == ["bundle"]


def test_a_damaged_bundle_may_be_replaced(bundle: Path) -> None:
    (bundle / "decoder.onnx").unlink()
    document = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps({**document, "format": "p2p-bundle/0"}))
    with writing_bundle(bundle, force=True) as folder:
        fill(folder, b"other")
    assert Bundle.open(bundle).path("decoder.onnx").read_bytes() == b"other"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"files": null}', '{"files": []}'])
def test_a_manifest_that_lists_nothing_protects_its_folder(bundle: Path, content: str) -> None:
    (bundle / "manifest.json").write_text(content)
    with pytest.raises(InputError, match="--force"):
        check_output(bundle, force=True)


def test_what_a_killed_export_left_is_removed(bundle: Path) -> None:
    left = bundle.with_name(".bundle.p2p-export.k1lled")
    old = bundle.with_name(".bundle.p2p-old.k1lled")
    others = bundle.with_name(".bundle.backup")
    for folder in (left, old, others):
        shutil.copytree(bundle, folder)
    with writing_bundle(bundle, force=True) as folder:
        fill(folder)
    assert names(bundle.parent) == [".bundle.backup", "bundle"]


def test_an_old_bundle_set_aside_is_kept_where_no_new_one_came(bundle: Path) -> None:
    old = bundle.with_name(".other.p2p-old.k1lled")
    shutil.copytree(bundle, old)
    with writing_bundle(bundle.with_name("other")) as folder:
        fill(folder)
    assert Bundle.open(old)


def test_a_folder_whose_maker_lives_is_left_alone(tmp_path: Path) -> None:
    with owned_folder(tmp_path, ".b.") as mine:
        remove_abandoned(tmp_path, ".b.")
        assert mine.is_dir()
    assert names(tmp_path) == []


SLOW_EXPORT = """
import sys, time
from p2p_export.bundle_writing import writing_bundle
from p2p_export.cli import main as command_line

def run(args, console):
    with writing_bundle(sys.argv[1]) as folder:
        (folder / "half").write_text("half")
        print("ready", flush=True)
        time.sleep(60)

command_line._run = lambda argv, debug: run(argv, None)
command_line.entry_point()
"""


def start_export(output: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_EXPORT, str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_terminated_export_cleans_up_and_says_so(tmp_path: Path) -> None:
    process = start_export(tmp_path / "bundle")
    process.terminate()
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert said == "p2p-export: stopped by SIGTERM\n"
    assert names(tmp_path) == []


def test_a_killed_export_is_cleaned_up_behind_and_a_running_one_is_not(tmp_path: Path) -> None:
    killed, running = start_export(tmp_path / "bundle"), start_export(tmp_path / "bundle")
    assert len(names(tmp_path)) == 2
    killed.kill()
    killed.communicate(timeout=30)
    time.sleep(0.1)
    with writing_bundle(tmp_path / "bundle") as folder:
        fill(folder)
        assert len(names(tmp_path)) == 2
    running.terminate()
    running.communicate(timeout=30)
    assert names(tmp_path) == ["bundle"]
