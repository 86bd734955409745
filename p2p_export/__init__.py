"""p2p-export: take the visual computation a model does not need out of its engine."""

from __future__ import annotations

from p2p_export import flops
from p2p_export.plan import Plan
from p2p_export.proxies import ProxySet

__all__ = ["Plan", "ProxySet", "flops"]
__version__ = "0.1.0"
