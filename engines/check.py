"""The result of one check of a bundle."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """`detail` says what was found, in a line. A skipped check has not failed, nor passed."""

    name: str
    passed: bool
    detail: str
    skipped: bool = False
