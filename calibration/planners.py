"""From sweep accuracies to layers: the paper's rule. Pure: nothing is measured here."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from p2p_export.calibration.accuracy import Accuracy
from p2p_export.errors import InputError


def check_tolerance(tolerance: float) -> None:
    """Raise `InputError` unless the relative tolerance lies in [0, 1)."""
    if not 0 <= tolerance < 1:
        raise InputError(
            f"a tolerance of {tolerance} is not in [0, 1); 0.03 gives up at most 3 % of the "
            "dense accuracy"
        )


def within_tolerance(accuracy: Accuracy, dense: Accuracy, tolerance: float) -> bool:
    """Acc >= (1 - tolerance) * Acc_dense, in exact arithmetic on the counts."""
    # The decimal the user wrote, not its binary neighbour: 0.07 of 100 leaves 93, not 92.99….
    kept = 1 - Fraction(str(tolerance))
    return accuracy.correct * dense.total >= kept * dense.correct * accuracy.total


def largest_union(
    forward: Sequence[Accuracy], backward: Sequence[Accuracy], dense: Accuracy, tolerance: float
) -> tuple[int, ...]:
    """The paper's rule: per direction the largest run within tolerance, and their union.

    `forward[i]` is the accuracy with layers 0..i patched, `backward[i]` with layers i..L-1. The
    largest passing run counts, also when a shorter one fails. The union itself was not measured.
    """
    layers = range(len(forward))
    passing_forward = [i for i in layers if within_tolerance(forward[i], dense, tolerance)]
    passing_backward = [i for i in layers if within_tolerance(backward[i], dense, tolerance)]
    prefix = range(max(passing_forward, default=-1) + 1)
    suffix = range(min(passing_backward, default=len(forward)), len(forward))
    return tuple(sorted({*prefix, *suffix}))
