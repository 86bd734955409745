"""Numbers with their units, as tables and the report print them."""

from __future__ import annotations


def flops_text(value: float) -> str:
    """12_952_000_000.0 -> '12.95 GFLOPs'."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{_three_digits(value / factor)} {prefix}FLOPs"
    return f"{_three_digits(value / 1e3)} kFLOPs"


def bytes_text(value: float) -> str:
    """1_572_864.0 -> '1.50 MiB'."""
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= factor:
            return f"{_three_digits(value / factor)} {unit}"
    return f"{value:.0f} B"


def percent_text(fraction: float, digits: int = 1) -> str:
    """0.6181 -> '61.8 %'."""
    return f"{100 * fraction:.{digits}f} %"


def milliseconds_text(seconds: float) -> str:
    """0.00321 -> '3.21 ms'."""
    return f"{_three_digits(1e3 * seconds)} ms"


def accuracy_text(correct: float, total: int) -> str:
    """(957, 1000) -> '95.7 % (957 of 1000)'; a score may be fractional."""
    counted = f"{correct:.0f}" if float(correct).is_integer() else f"{correct:.1f}"
    return f"{percent_text(correct / total)} ({counted} of {total})" if total else "no questions"


def _three_digits(value: float) -> str:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}"
