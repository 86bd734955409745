"""From data to a plan: splits, proxies, sweeps, the planner, accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2p_export.calibration.patching import patched

__all__ = ["patched"]


def __getattr__(name: str) -> Any:
    # Importing one light module of this room (a dataset, the planner) must not import torch.
    if name == "patched":
        from p2p_export.calibration.patching import patched

        return patched
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
