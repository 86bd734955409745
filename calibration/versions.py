"""The versions that decide numbers: recorded with every plan."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "transformers", "numpy", "pillow", "tokenizers")


def versions() -> dict[str, str]:
    """Version by package, ours and Python's included."""
    import p2p_export

    found = {"p2p_export": p2p_export.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
