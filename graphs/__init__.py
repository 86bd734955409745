"""PyTorch decoder -> ONNX, and the rewrite that takes the visual rows out of planned layers."""

from __future__ import annotations

from p2p_export.graphs.export import export_decoder
from p2p_export.graphs.rewrite import RewriteReport, rewrite_decoder

__all__ = ["RewriteReport", "export_decoder", "rewrite_decoder"]
