"""report.html: one page, no network, from a plan, an evaluation and a benchmark."""

from __future__ import annotations

from p2p_export.report.building import build_view
from p2p_export.report.measurements import read_bench, read_evaluation
from p2p_export.report.page import render_report, write_report

__all__ = ["build_view", "read_bench", "read_evaluation", "render_report", "write_report"]
