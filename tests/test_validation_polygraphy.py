"""Polygraphy itself passes a good bundle by its goldens, and fails a broken one."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from exported_bundles import bundle, copy_of
from polygraphy.comparator import RunResults
from polygraphy.json import load_json
from test_validation import constant_in_graph, weight_bytes

from p2p_export.bundle import Bundle
from p2p_export.bundle_readme import polygraphy_command
from p2p_export.engines.goldens import load_goldens

PHASES = ("prefill", "decode")


def polygraphy(folder: Path, graph: str, phase: str) -> int:
    """The line the bundle's README gives, run there."""
    line = polygraphy_command(Bundle.open(folder).manifest, graph, phase)
    assert line in (folder / "README.md").read_text()
    program, *arguments = shlex.split(line)
    ran = subprocess.run(
        [Path(sys.executable).with_name(program), *arguments],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    return ran.returncode


@pytest.mark.parametrize(
    ("family", "graph", "phase"),
    [
        ("llava", "decoder.onnx", "prefill"),
        ("qwen2_5_vl", "decoder.onnx", "decode"),
        pytest.param("qwen2_5_vl", "decoder.dense.onnx", "prefill", marks=pytest.mark.slow),
    ],
)
def test_polygraphy_passes_a_good_bundle(family: str, graph: str, phase: str) -> None:
    assert polygraphy(bundle(family), graph, phase) == 0


@pytest.mark.parametrize(
    ("fault", "phase"),
    [
        (constant_in_graph, "prefill"),
        pytest.param(weight_bytes, "decode", marks=pytest.mark.slow),
    ],
)
def test_polygraphy_fails_a_broken_bundle(tmp_path: Path, fault: object, phase: str) -> None:
    folder = copy_of(bundle("llava"), tmp_path / "bundle")
    fault(folder)  # type: ignore[operator]
    assert polygraphy(folder, "decoder.onnx", phase) == 1


@pytest.mark.parametrize("phase", PHASES)
def test_polygraphy_reads_the_goldens_as_we_do(phase: str) -> None:
    folder = bundle("qwen2_5_vl")
    ours = load_goldens(folder, "decoder.onnx", phase)  # type: ignore[arg-type]
    inputs = load_json(str(folder / "golden" / f"{phase}.inputs.json"))
    outputs = RunResults.load(str(folder / "golden" / f"{phase}.outputs.json"))["pytorch"]
    for case, theirs, answers in zip(ours, inputs, outputs, strict=True):
        assert list(theirs) == list(case.inputs)
        for name, array in case.inputs.items():
            np.testing.assert_array_equal(theirs[name], array)
        for name, array in case.outputs.items():
            np.testing.assert_array_equal(answers[name], array)
