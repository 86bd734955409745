"""What an export is asked for: targets, precision, lowering, layout and limits, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from p2p_export.errors import InputError
from p2p_export.manifest import Limits
from p2p_export.manifest_schema import TARGETS

Precision = Literal["fp32", "fp16"]

TARGETS_TO_COME = ("trt", "trt-rtx")
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")
LOWERINGS = ("elided", "fused", "literal")
LAYOUTS = ("index", "span")
DEFAULT_PRECISION: Mapping[str, Precision] = {"ort": "fp32"}


@dataclass(frozen=True)
class ExportOptions:
    """Options of one export. `lowering` and `layout` are names that `rewrite_decoder` takes."""

    target: str
    precision: Precision
    lowering: Any
    layout: Any
    only_decoder: bool
    dense: bool
    limits: Limits


def check_target(target: str) -> None:
    """Raise `InputError` unless bundles can be made for `target`."""
    if target in TARGETS_TO_COME:
        raise InputError(
            f"target {target!r} comes in a later version; export with --target {TARGETS[0]}"
        )
    _check_one_of("target", target, TARGETS)


def make_options(
    *,
    target: str,
    precision: str | None,
    lowering: str,
    layout: str,
    only: str | None,
    dense: bool,
    limits: Limits,
) -> ExportOptions:
    """Check each option; `InputError` names the first that we cannot serve, and those we can."""
    check_target(target)
    chosen = next((one for one in PRECISIONS if one == precision), DEFAULT_PRECISION[target])
    if precision == "bf16":
        raise InputError(
            "ONNX Runtime has no bfloat16 kernels on a CPU, so a bundle for target ort cannot be "
            f"of precision bf16; use {' or '.join(PRECISIONS)}"
        )
    if precision is not None:
        _check_one_of("precision", precision, PRECISIONS)
    _check_one_of("lowering", lowering, LOWERINGS)
    _check_one_of("layout", layout, LAYOUTS)
    if only is not None:
        _check_one_of("only", only, ("decoder",))
    for one in fields(limits):
        value = getattr(limits, one.name)
        if value is not None and value < 1:
            raise InputError(f"{one.name} is {value} and must be at least 1")
    return ExportOptions(target, chosen, lowering, layout, only == "decoder", dense, limits)


def _check_one_of(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"there is no {what} {value!r}; we have {', '.join(known)}")
