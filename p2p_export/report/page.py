"""Rendering the page from its view, and writing it whole."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from p2p_export import __version__
from p2p_export.atomic_file import write_atomically
from p2p_export.report.charts import Bars, CurveChart, LayerStrip
from p2p_export.report.view import ReportView


def render_report(view: ReportView) -> str:
    """The HTML of `view`: self-contained, every text of it escaped."""
    from jinja2 import Environment, StrictUndefined

    here = files(__package__ or __name__)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((here / "page.html.jinja").read_text(encoding="utf-8"))
    return template.render(
        view=view,
        css=(here / "page.css").read_text(encoding="utf-8"),
        curves=CurveChart.draw(view.curves, view.dense_accuracy, view.tolerance)
        if view.curves
        else None,
        strip=LayerStrip.draw(view.modes),
        bars=[Bars.draw(comparison) for comparison in view.comparisons],
        version=__version__,
    )


def write_report(view: ReportView, path: Path) -> None:
    """Write the page to `path`, whole or not at all (`InputError` when it cannot be written)."""
    write_atomically(path, render_report(view).encode())
