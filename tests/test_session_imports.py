"""Opening and running a bundle needs NumPy and ONNX Runtime, nothing of the toolchain."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from exported_bundles import bundle

TOOLCHAIN = (
    "torch", "transformers", "onnx", "jsonschema", "rich", "PIL", "safetensors", "polygraphy",
    "onnx_graphsurgeon", "jinja2",
)  # fmt: skip
SCRIPT = """
import json, sys
import p2p_export
from p2p_export.engines import open_bundle
seen = {"import": sorted(sys.modules)}
if len(sys.argv) > 1:
    import numpy as np
    session = open_bundle(sys.argv[1])
    positions = np.arange(4)[None]
    visual = np.array([[False, True, True, False]])
    logits, state = session.prefill(np.ones((1, 4, 48), np.float32), positions, visual)
    session.decode(np.ones((1, 1, 48), np.float32), np.array([[4]]), state)
    seen["run"] = sorted(sys.modules)
json.dump(seen, sys.stdout)
"""


def modules(folder: Path, *arguments: str) -> dict[str, list[str]]:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(ran.stdout)
    return found


def test_neither_import_nor_run_loads_the_toolchain(tmp_path: Path) -> None:
    for loaded in modules(tmp_path, str(bundle("llava"))).values():
        assert not set(TOOLCHAIN) & set(loaded)


def test_the_import_alone_loads_no_runtime(tmp_path: Path) -> None:
    assert "onnxruntime" not in modules(tmp_path)["import"]
