"""report.html: one page, no network, from a plan, an evaluation and a benchmark."""

from __future__ import annotations

from p2p_export.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
