"""JSON made to break its reader is one of our errors, wherever we read some."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from test_bundle_manifest import MANIFEST

from p2p_export.bundle import read_manifest
from p2p_export.calibration.json_lines import json_lines_samples
from p2p_export.engines.polygraphy_json import read_inputs
from p2p_export.engines.prompting import read_settings
from p2p_export.errors import BundleError, InputError, PlanError
from p2p_export.json_reading import DEEPEST, parse_json, shortened
from p2p_export.plan import Plan
from p2p_export.report.measurements import read_bench
from p2p_export.safetensors_header import read_header

HOSTILE = {
    "deep": b'{"a":' * 100_000,
    "deep for others": b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1),
    "endless digits": b'{"format": ' + b"9" * 5000 + b"}",
    "infinite": b'{"format": 1e999}',
    "nan": b'{"format": NaN}',
    "half a pair": rb'{"format": "\ud800"}',
    "half a pair as a key": rb'{"\udfff": 1}',
    "not UTF-8": b'{"format": "\xff"}',
    "cut": b'{"format": ',
    "empty": b"",
}


def manifest_of(path: Path) -> None:
    path.rename(path.with_name("manifest.json"))
    read_manifest(path.parent)


def header_of(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(len(content).to_bytes(8, "little") + content)
    read_header(path)


READERS: dict[str, tuple[Callable[[Path], Any], type[Exception]]] = {
    "plan": (Plan.load, PlanError),
    "manifest": (manifest_of, BundleError),
    "safetensors header": (header_of, InputError),
    "golden": (read_inputs, BundleError),
    "processor settings": (read_settings, BundleError),
    "measurements": (read_bench, InputError),
    "data": (json_lines_samples, InputError),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_it_is_refused_in_one_sentence(reader: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "here"
    path.write_bytes(HOSTILE[kind])
    read, expected = READERS[reader]
    with pytest.raises(expected) as refused:
        read(path)
    assert len(str(refused.value)) < 600
    assert len(str(refused.value).splitlines()) == 1


def test_what_is_sound_is_read_whatever_it_says() -> None:
    document = {"é": ["\U0001f600", None, True, 1.5, 2**62, {"": {}}]}
    assert parse_json(json.dumps(document), where="it", advice="") == document
    assert parse_json(json.dumps(document, ensure_ascii=False), where="it", advice="") == document


def test_a_long_text_keeps_both_ends() -> None:
    assert shortened("short") == "short"
    assert len(shortened("a" * 5000 + "b")) <= 120
    assert shortened("a" * 5000 + "b").endswith("b")


@pytest.mark.parametrize("path", ["nul\0byte", "surrogate\udcff", "long" * 5000])
def test_a_path_that_none_can_be(path: str) -> None:
    with pytest.raises(PlanError) as refused:
        Plan.load(path)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("field", ["id", "file"])
@pytest.mark.parametrize("name", ["nul\0byte", "line\nbreak", ""])
def test_a_plan_names_no_file_or_model_that_none_can_be(field: str, name: str) -> None:
    document: dict[str, Any] = {
        "format": "p2p-plan/1",
        "model": {"id": "m"},
        "layers": {"0": "proxy"},
        "proxies": {"file": "f"},
    }
    document["model" if field == "id" else "proxies"][field] = name
    with pytest.raises(PlanError, match=field):
        Plan.from_dict(document)


def test_a_layer_of_endless_digits() -> None:
    layers = {"9" * 5000: "proxy"}
    document = {"format": "p2p-plan/1", "model": {"id": "m"}, "layers": layers}
    with pytest.raises(PlanError) as refused:
        Plan.from_dict(document)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("count", [10**30, 10_000, 3.0, True, "3"])
def test_a_plan_for_a_model_of_no_such_depth(count: Any) -> None:
    model = {"id": "m", "num_hidden_layers": count}
    with pytest.raises(PlanError, match=r"model\.num_hidden_layers"):
        Plan.from_dict({"format": "p2p-plan/1", "model": model, "layers": {}})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shape", [1e400]),
        ("shape", [-2, -1]),
        ("shape", [3]),
        ("shape", "2"),
        ("data_offsets", [8, 0]),
        ("data_offsets", [-8, 0]),
        ("data_offsets", [0, 10**15]),
        ("data_offsets", [0]),
        ("data_offsets", [0.0, 8.0]),
        ("dtype", None),
    ],
)
def test_a_header_that_contradicts_its_file(field: str, value: Any, tmp_path: Path) -> None:
    whole = save({"a": np.zeros(2, dtype=np.float32)})
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    header["a"][field] = value
    content = json.dumps(header).encode()
    path = tmp_path / "file.safetensors"
    path.write_bytes(len(content).to_bytes(8, "little") + content + whole[8 + length :])
    with pytest.raises(InputError, match="fetch or make it again"):
        read_header(path)


def test_a_manifest_that_is_a_link_out_of_the_bundle(tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere.json"
    outside.write_bytes(MANIFEST.to_json())
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "manifest.json").symlink_to(outside)
    with pytest.raises(BundleError, match="leads outside"):
        read_manifest(tmp_path / "bundle")
