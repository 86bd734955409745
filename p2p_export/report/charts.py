"""The geometry of the page's drawings; the template turns it into SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2p_export.plan import Mode
from p2p_export.report.view import Comparison, Curve


@dataclass(frozen=True)
class Point:
    """A mark at (x, y) in SVG units, with the words a pointer shows over it."""

    x: float
    y: float
    label: str


@dataclass(frozen=True)
class Line:
    """One curve: its points and the path through them."""

    direction: str
    points: tuple[Point, ...]

    @property
    def path(self) -> str:
        return "M" + " L".join(f"{p.x:.1f} {p.y:.1f}" for p in self.points)


@dataclass(frozen=True)
class Tick:
    """A mark on an axis at `at` SVG units."""

    at: float
    label: str


@dataclass(frozen=True)
class CurveChart:
    """Accuracy over the number of layers patched, with the dense and the tolerance level."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    dense_level: float | None
    tolerance_level: float | None

    @classmethod
    def draw(
        cls,
        curves: Sequence[Curve],
        dense_accuracy: float | None,
        tolerance: float | None,
        *,
        width: float = 720,
        height: float = 320,
    ) -> CurveChart:
        """Place the curves; the vertical axis starts at the tenth below the lowest value."""
        left, right, top, bottom = 52.0, width - 14, 14.0, height - 46
        steps = max(len(curve.accuracy) for curve in curves) - 1
        values = [value for curve in curves for value in curve.accuracy]
        floor = min(int(min(values) * 10) / 10, 0.9)

        def x(step: int) -> float:
            return left + (right - left) * step / max(steps, 1)

        def y(value: float) -> float:
            return bottom - (bottom - top) * (value - floor) / (1 - floor)

        lines = tuple(
            Line(
                curve.direction,
                tuple(
                    Point(
                        x(step), y(value), f"{curve.direction}, {step} layers: {100 * value:.1f} %"
                    )
                    for step, value in enumerate(curve.accuracy)
                ),
            )
            for curve in curves
        )
        every = max(1, -(-steps // 16))
        tenths = range(round(floor * 10), 11)
        return cls(
            width,
            height,
            left,
            right,
            top,
            bottom,
            lines,
            tuple(Tick(x(step), str(step)) for step in range(0, steps + 1, every)),
            tuple(Tick(y(tenth / 10), f"{10 * tenth} %") for tenth in tenths),
            None if dense_accuracy is None else y(dense_accuracy),
            None
            if dense_accuracy is None or tolerance is None
            else y((1 - tolerance) * dense_accuracy),
        )


@dataclass(frozen=True)
class Cell:
    """One layer of the strip."""

    x: float
    width: float
    layer: int
    mode: Mode
    label: str


@dataclass(frozen=True)
class LayerStrip:
    """The plan over depth: one cell a layer, the input at the left."""

    width: float
    cells: tuple[Cell, ...]

    @classmethod
    def draw(cls, modes: Sequence[Mode], *, width: float = 720) -> LayerStrip:
        """One cell per layer, its number where there is room for it."""
        gap = 3.0 if len(modes) <= 40 else 1.0
        cell = (width + gap) / len(modes) - gap
        every = 1 if cell >= 20 else 4
        return cls(
            width,
            tuple(
                Cell(i * (cell + gap), cell, i, mode, str(i) if i % every == 0 else "")
                for i, mode in enumerate(modes)
            ),
        )


@dataclass(frozen=True)
class Bars:
    """A dense and a pruned bar, in percent of the longer one."""

    comparison: Comparison
    dense_percent: float
    pruned_percent: float

    @classmethod
    def draw(cls, comparison: Comparison) -> Bars:
        longest = max(comparison.dense, comparison.pruned) or 1.0
        return cls(comparison, 100 * comparison.dense / longest, 100 * comparison.pruned / longest)
