"""Opening, running, checking and timing bundles."""

from __future__ import annotations

from p2p_export.engines.session import Session, open_bundle
from p2p_export.engines.state import State

__all__ = ["Session", "State", "open_bundle"]
