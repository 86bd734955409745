"""`rewrite` never writes over what it reads, and leaves all or nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from exported_bundles import bundle, copy_of

from p2p_export.cli.main import main
from p2p_export.errors import InputError
from p2p_export.output_file import check_output_file

GRAPH, WEIGHTS = "decoder.dense.onnx", "decoder.weights.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dense graph with its weights, a plan and its proxies."""
    whole = copy_of(bundle("llava"), tmp_path / "bundle")
    here = tmp_path / "here"
    here.mkdir()
    for name in (GRAPH, WEIGHTS, "plan.json", "proxies.safetensors"):
        shutil.copyfile(whole / name, here / name)
    return here


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    def check(output: Path | str, *words: str) -> None:
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        argv = ["rewrite", str(folder / GRAPH), "--plan", str(folder / "plan.json"), "--force"]
        assert main([*argv, "-o", str(output)]) == 2
        said = capsys.readouterr().err
        for word in words:
            assert word in said
        assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before

    return check


@pytest.mark.parametrize("name", [GRAPH, WEIGHTS, "plan.json", "proxies.safetensors"])
def test_an_input_is_never_overwritten(
    refused: Callable[..., None], folder: Path, name: str
) -> None:
    refused(folder / name, "itself", name)
    (folder / "link").symlink_to(folder / name)
    refused(folder / "link", "itself")


def test_an_output_where_the_weights_belong(refused: Callable[..., None], folder: Path) -> None:
    (folder / "other").mkdir()
    refused(folder / "other" / WEIGHTS, "belongs")


def test_an_output_without_a_folder(refused: Callable[..., None], folder: Path) -> None:
    refused(folder / "zz" / "x.onnx", "no folder")
    refused(folder / ("x" * 5000), "cannot be written")


def no_link(*_: object) -> None:
    raise OSError(18, "Invalid cross-device link")


def test_a_copy_that_does_not_fit_leaves_nothing_and_names_the_place(
    refused: Callable[..., None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(_origin: Path, target: Path) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device", str(_origin))

    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(shutil, "copyfile", half)
    (folder / "other").mkdir()
    refused(folder / "other" / "x.onnx", "No space", str(folder / "other" / WEIGHTS), "MiB")
    assert not list((folder / "other").iterdir())


def test_a_graph_that_does_not_fit_takes_its_weights_along(
    refused: Callable[..., None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (folder / "other").mkdir()
    refused(folder / "other" / "x.onnx", "x.onnx")
    assert not list((folder / "other").iterdir())


def test_across_file_systems_the_weights_are_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", no_link)
    (folder / "other").mkdir()
    argv = ["rewrite", str(folder / GRAPH), "--plan", str(folder / "plan.json")]
    assert main([*argv, "-o", str(folder / "other" / "x.onnx")]) == 0
    assert (folder / "other" / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()
    assert len(list((folder / "other").iterdir())) == 2


def test_measurements_never_replace_a_file_of_the_bundle(folder: Path) -> None:
    with pytest.raises(InputError, match="is a file of the bundle"):
        check_output_file(folder / GRAPH, {"the bundle": folder})
    check_output_file(folder / "bench.json", {"the bundle": folder, "the plan": None})
