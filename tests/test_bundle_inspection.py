"""`inspect` says what a file is, whichever of ours it is, and what it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exported_bundles import bundle

from p2p_export.errors import InputError
from p2p_export.inspection import inspect_path, layers_text


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("", "bundle", "planned layers: 1-2 proxy, 3 frozen"),
        ("manifest.json", "bundle", "vision: vision.onnx"),
        ("plan.json", "plan", "planned layers: 1-2 proxy, 3 frozen of 4"),
        ("decoder.onnx", "onnx", "weights: decoder.weights.safetensors"),
        ("proxies.safetensors", "safetensors", "56 tensors (56 F32)"),
    ],
)
def test_each_of_our_files_is_known(name: str, kind: str, said: str) -> None:
    found = inspect_path(bundle("llava") / name)
    assert found.kind == kind
    assert any(said in line for line in found.lines)
    assert json.loads(json.dumps(found.to_dict()))["kind"] == kind


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.onnx", None, "there is nothing at"),
        ("notes.txt", b"hello", "nothing we can inspect"),
        ("broken.onnx", b"hello", "not an ONNX model"),
        ("broken.safetensors", b"\xff" * 20, "not a whole safetensors file"),
        ("broken.json", b"{", "not JSON"),
    ],
)
def test_anything_else_is_refused(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        inspect_path(tmp_path / name)


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no bundle"):
        inspect_path(tmp_path)


def test_layers_are_written_in_runs() -> None:
    assert layers_text({0: "proxy", 1: "proxy", 2: "dense", 3: "proxy", 4: "frozen"}) == (
        "0-1 proxy, 3 proxy, 4 frozen"
    )
    assert layers_text({}) == "none"
