"""PyTorch decoder -> ONNX, and the rewrite that takes the visual rows out of planned layers.

`export_decoder` needs torch and is imported when first used, so that rewriting a graph does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p2p_export.graphs.rewrite import RewriteReport, rewrite_decoder

if TYPE_CHECKING:
    from p2p_export.graphs.export import export_decoder

__all__ = ["RewriteReport", "export_decoder", "rewrite_decoder"]


def __getattr__(name: str) -> Any:
    if name == "export_decoder":
        from p2p_export.graphs.export import export_decoder

        return export_decoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
