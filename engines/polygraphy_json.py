"""Polygraphy's JSON files of inputs and outputs, written and read with NumPy alone.

The format is Polygraphy 0.49's and later: an array is its .npy bytes in base64; inputs are a list
of name -> array, one entry an iteration; outputs are a `RunResults` of one runner.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.errors import BundleError
from p2p_export.json_reading import read_json

RUNNER = "pytorch"
CLASS = "polygraphy_class"

Arrays = Mapping[str, npt.NDArray[Any]]


def write_inputs(path: Path, iterations: Sequence[Arrays]) -> None:
    """What `polygraphy run --load-inputs` reads."""
    _write(path, [{name: _encode(array) for name, array in one.items()} for one in iterations])


def write_outputs(path: Path, iterations: Sequence[Arrays]) -> None:
    """What `polygraphy run --load-outputs` compares with."""
    results = [
        {
            "outputs": {
                name: {"values": _encode(array), CLASS: "LazyArray"} for name, array in one.items()
            },
            "runtime": None,
            "runner_name": RUNNER,
            CLASS: "IterationResult",
        }
        for one in iterations
    ]
    _write(path, {"lst": [[RUNNER, results]], CLASS: "RunResults"})


def read_inputs(path: Path) -> list[dict[str, npt.NDArray[Any]]]:
    """Name -> array of each iteration; `BundleError` when the file is not such a file."""
    try:
        return [{name: _decode(entry) for name, entry in one.items()} for one in _read(path)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from None


def read_outputs(path: Path) -> list[dict[str, npt.NDArray[Any]]]:
    """As `read_inputs`, for outputs of one runner."""
    try:
        [(_, iterations)] = _read(path)["lst"]
        return [
            {name: _decode(entry["values"]) for name, entry in one["outputs"].items()}
            for one in iterations
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from None


def _encode(array: npt.NDArray[Any]) -> dict[str, str]:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return {"array": base64.b64encode(buffer.getvalue()).decode(), CLASS: "ndarray"}


def _decode(entry: Mapping[str, str]) -> npt.NDArray[Any]:
    raw = base64.b64decode(entry["array"], validate=True)
    array: npt.NDArray[Any] = np.load(io.BytesIO(raw), allow_pickle=False)
    return array


def _write(path: Path, document: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file)


def _read(path: Path) -> Any:
    return read_json(path, error=BundleError, advice="export the bundle again")


def _unreadable(path: Path, error: Exception) -> BundleError:
    return BundleError(f"{path} is no golden file ({error}); export the bundle again")
