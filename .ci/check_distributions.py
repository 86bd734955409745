"""Check the wheel and the sdist in a folder: one top-level name, and nothing left behind."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

NEEDED = (
    "p2p_export/py.typed",
    "p2p_export/calibration/__init__.py",
    "p2p_export/graphs/__init__.py",
    "p2p_export/engines/__init__.py",
    "p2p_export/cli/verbs/export.py",
    "p2p_export/report/page.html.jinja",
    "p2p_export/report/page.css",
    "p2p_export/builtin/tiny-llava/config.json",
    "p2p_export/builtin/tiny-llava/model.safetensors",
    "p2p_export/builtin/tiny-qwen2.5-vl/config.json",
    "p2p_export/builtin/tiny-qwen2.5-vl/model.safetensors",
)


def main(folder: Path) -> int:
    """Print what is wrong with the distributions in `folder`; 1 if anything is."""
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        wheel_names = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        sdist_names = {name.partition("/")[2] for name in archive.getnames()}

    faults = [f"{wheel.name} lacks {name}" for name in NEEDED if name not in wheel_names]
    faults += [f"{sdist.name} lacks {name}" for name in NEEDED if name not in sdist_names]
    tops = {name.partition("/")[0] for name in wheel_names}
    tops = {name for name in tops if not name.endswith(".dist-info")}
    if tops != {"p2p_export"}:
        faults.append(f"{wheel.name} installs {sorted(tops)} and only p2p_export is allowed")
    for fault in faults:
        print(fault, file=sys.stderr)
    if not faults:
        print(f"{wheel.name}: {len(wheel_names)} files, only p2p_export at the top; {sdist.name}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
