"""One call of a session, checked: what may go into the graph, and why anything else may not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.engines.context import NOWHERE
from p2p_export.engines.state import State
from p2p_export.errors import InputError
from p2p_export.manifest import Limits

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Request:
    """Arrays of one call: `inputs_embeds` [B,S,D] in the graph's dtype, `position_ids` [B,S] or
    [3,B,S] int64, `visual_mask` [B,S] bool, `attention_mask` [B,S] int64 of this call's rows."""

    inputs_embeds: npt.NDArray[Any]
    position_ids: IntArray
    visual_mask: BoolArray
    attention_mask: IntArray

    @property
    def batch(self) -> int:
        return int(self.inputs_embeds.shape[0])

    @property
    def length(self) -> int:
        return int(self.inputs_embeds.shape[1])


def make_request(
    inputs_embeds: Any,
    position_ids: Any,
    visual_mask: Any,
    attention_mask: Any | None,
    *,
    hidden_size: int,
    position_axes: int,
    dtype: npt.DTypeLike,
) -> Request:
    """Check one call's arrays against each other; `InputError` with a sentence about the first
    that does not fit."""
    embeds = _embeds(inputs_embeds, hidden_size, np.dtype(dtype))
    batch, length = embeds.shape[0], embeds.shape[1]
    positions = _positions(position_ids, batch, length, position_axes)
    visual = as_array(visual_mask, "visual_mask")
    if visual.dtype != np.bool_ or visual.shape != (batch, length):
        raise InputError(
            f"visual_mask is {_form(visual)} and must be bool {[batch, length]}: one entry per "
            "row of inputs_embeds"
        )
    mask = _attention_mask(attention_mask, batch, length)
    beyond = ((positions < 0) | (positions >= NOWHERE)) & (mask != 0)
    if beyond.any():
        raise InputError(
            f"position_ids holds {positions[beyond][0]} and must count from 0 to {NOWHERE - 1}"
        )
    if (visual & (mask == 0)).any():
        row, at = np.argwhere(visual & (mask == 0))[0]
        raise InputError(
            f"visual_mask marks position {at} of batch row {row}, which attention_mask says is "
            "padding; padding is neither visual nor text"
        )
    return Request(embeds, positions, visual, mask)


def as_array(value: Any, name: str) -> npt.NDArray[Any]:
    """`value` as NumPy reads it; `InputError` where it reads none."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError):
        raise InputError(
            f"{name} is no array: its rows are of unequal length or hold no numbers; give a NumPy "
            "array"
        ) from None


def check_continues(request: Request, state: State | None, graph: str, limits: Limits) -> None:
    """Raise `InputError` unless `request` fits behind `state` and within what was built."""
    past, visual = 0, request.visual_mask.sum(axis=1)
    if state is not None:
        if not isinstance(state, State):
            raise InputError(
                f"the state is a {type(state).__name__} and must be what prefill or decode returned"
            )
        if state.graph != graph:
            raise InputError(
                "this state was made by another bundle, or by the other decoder of this one; "
                "prefill with this session first"
            )
        if state.batch != request.batch:
            raise InputError(
                f"the state holds {state.batch} batch rows and this call has {request.batch}; "
                "continue all rows of the batch together"
            )
        past, visual = state.length, visual + state.context.visual_tokens
    for what, asked, limit in (
        ("batch rows", request.batch, limits.max_batch),
        ("tokens of context", past + request.length, limits.max_context),
        ("visual tokens in a row's context", int(visual.max()), limits.max_visual_tokens),
    ):
        if limit is not None and asked > limit:
            raise InputError(
                f"{asked} {what} and this bundle was made for at most {limit}; shorten the "
                "request or export with a larger limit"
            )


def _embeds(value: Any, hidden_size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    embeds = as_array(value, "inputs_embeds")
    if embeds.ndim != 3 or embeds.shape[2] != hidden_size or 0 in embeds.shape:
        raise InputError(
            f"inputs_embeds has shape {list(embeds.shape)} and must be [batch, rows, "
            f"{hidden_size}] with at least one row"
        )
    if not np.issubdtype(embeds.dtype, np.floating):
        raise InputError(
            f"inputs_embeds is {embeds.dtype} and must be floating point; look token ids up in "
            "the embedding first"
        )
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(embeds, dtype=dtype)
    if not np.isfinite(converted).all():
        raise InputError(f"inputs_embeds holds NaN or Inf (as {dtype}); check what made it")
    return converted


def _positions(value: Any, batch: int, length: int, axes: int) -> IntArray:
    positions = as_array(value, "position_ids")
    expected = (batch, length) if axes == 1 else (axes, batch, length)
    if not np.issubdtype(positions.dtype, np.integer) or positions.shape != expected:
        raise InputError(
            f"position_ids is {_form(positions)} and this model needs int64 {list(expected)}"
        )
    if positions.dtype == np.uint64:  # what int64 cannot hold becomes a number that is refused
        positions = np.minimum(positions, NOWHERE)
    return np.ascontiguousarray(positions, dtype=np.int64)


def _attention_mask(value: Any | None, batch: int, length: int) -> IntArray:
    if value is None:
        return np.ones((batch, length), dtype=np.int64)
    mask = as_array(value, "attention_mask")
    if not np.issubdtype(mask.dtype, np.integer) and mask.dtype != np.bool_:
        raise InputError(f"attention_mask is {mask.dtype} and must be int64 of 0 and 1")
    if mask.shape != (batch, length):
        raise InputError(
            f"attention_mask has shape {list(mask.shape)} and must be {[batch, length]}: the rows "
            "of this call alone, not of the whole context"
        )
    mask = mask.astype(np.int64)
    if not np.isin(mask, (0, 1)).all():
        raise InputError("attention_mask holds other values than 0 and 1")
    empty = np.flatnonzero(mask.sum(axis=1) == 0)
    if empty.size:
        raise InputError(
            f"attention_mask is all 0 in batch row {empty[0]}; leave rows without tokens out of "
            "the batch"
        )
    wrong = np.flatnonzero((np.diff(mask, axis=1) < 0).any(axis=1))
    if wrong.size:
        raise InputError(
            f"attention_mask of batch row {wrong[0]} has padding behind tokens; pad on the left"
        )
    return mask


def _form(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"
