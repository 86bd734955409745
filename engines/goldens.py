"""Goldens: inputs of a decoder graph and what PyTorch answers to them, kept in the bundle.

`golden/{prefill,decode}.{inputs,outputs}.json` are for the pruned decoder,
`golden/dense.{prefill,decode}.{inputs,outputs}.json` for the dense one and
`golden/vision.{inputs,outputs}.json` for the vision part, all in Polygraphy's format.
No golden holds padding: what a graph writes for rows that nobody reads is its own affair.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from p2p_export.bindings import (
    INPUTS_EMBEDS,
    LOGITS,
    POSITION_IDS,
    past_name,
    present_name,
)
from p2p_export.engines import polygraphy_json
from p2p_export.engines.context import NOWHERE, Context
from p2p_export.engines.row_layouts import ROW_LAYOUTS, CallRows
from p2p_export.errors import BundleError
from p2p_export.manifest import DECODER_FILE, DENSE_FILE, GOLDEN_FOLDER, VISION_FILE

Phase = Literal["prefill", "decode", "vision"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")
VISION: Phase = "vision"
PREFIXES = {DECODER_FILE: "", DENSE_FILE: "dense.", VISION_FILE: ""}

FloatArray = npt.NDArray[Any]


@dataclass(frozen=True)
class GoldenPrompt:
    """Rows of one prefill without padding: inputs_embeds [B,S,D] float32, position_ids [B,S] or
    [3,B,S] int64, visual_mask [B,S] bool."""

    inputs_embeds: npt.NDArray[np.float32]
    position_ids: npt.NDArray[np.int64]
    visual_mask: npt.NDArray[np.bool_]

    def rows(self, layout: str) -> CallRows:
        """Its streams as a graph of `layout` wants them; `LayoutError` when it cannot say them."""
        ones = np.ones(self.visual_mask.shape, dtype=np.int64)
        return ROW_LAYOUTS[layout](self.visual_mask, ones)


@dataclass(frozen=True)
class ReferenceCall:
    """One call of the reference: its rows, context and cache before it, and what came out.

    `cache_before` and `cache_after` list key and value of each layer in turn, [B,Hkv,P,head_dim];
    `logits` [B,vocab] float32 are of the last position.
    """

    prompt: GoldenPrompt
    before: Context
    cache_before: Sequence[FloatArray]
    cache_after: Sequence[FloatArray]
    logits: FloatArray

    @property
    def after(self) -> Context:
        """The context with this call's rows."""
        return self.before.with_rows(
            np.ones(self.prompt.visual_mask.shape, dtype=np.int64),
            self.prompt.position_ids,
            self.prompt.rows("index"),
        )


@dataclass(frozen=True)
class GoldenCase:
    """Inputs and expected outputs of one run of a graph, by binding name."""

    inputs: dict[str, FloatArray]
    outputs: dict[str, FloatArray]


def golden_case(
    call: ReferenceCall,
    input_names: frozenset[str],
    dtype: np.dtype[Any],
    *,
    layout: str = "index",
    elided_layers: Collection[int] = (),
) -> GoldenCase:
    """The call as a graph with `input_names` takes it, floating-point inputs in `dtype`.

    `elided_layers` cache text tokens alone. Raises ValueError when rows of the batch have unequal
    numbers of them: such a cache holds padding.
    """
    prompt, after = call.prompt, call.after
    inputs: dict[str, FloatArray] = {
        INPUTS_EMBEDS: prompt.inputs_embeds.astype(dtype),
        POSITION_IDS: prompt.position_ids,
        **prompt.rows(layout).feeds,
        **after.feeds(),
        **_named(_held(call.cache_before, call.before, elided_layers), past_name, dtype),
    }
    held = _held(call.cache_after, after, elided_layers)
    outputs = {LOGITS: call.logits, **_named(held, present_name, dtype)}
    return GoldenCase({name: inputs[name] for name in inputs if name in input_names}, outputs)


def _held(
    cache: Sequence[FloatArray], context: Context, elided_layers: Collection[int]
) -> list[FloatArray]:
    """Of a cache of all tokens what a graph's cache holds."""
    text = np.ones(context.attention_mask.shape, dtype=np.bool_)
    for row, places in enumerate(context.visual_sequence_index):
        text[row, places[places != NOWHERE]] = False
    return [
        np.stack([row[:, kept] for row, kept in zip(array, text, strict=True)])
        if i // 2 in elided_layers
        else array
        for i, array in enumerate(cache)
    ]


def save_goldens(folder: Path, graph: str, phase: Phase, cases: Sequence[GoldenCase]) -> None:
    """Write the goldens of `graph` (a file name) into the bundle `folder`."""
    inputs, outputs = (folder / name for name in golden_files(graph, phase))
    inputs.parent.mkdir(exist_ok=True)
    polygraphy_json.write_inputs(inputs, [case.inputs for case in cases])
    polygraphy_json.write_outputs(outputs, [case.outputs for case in cases])


def load_goldens(folder: Path, graph: str, phase: Phase) -> list[GoldenCase]:
    """Read them back; `BundleError` when they are damaged or do not belong together."""
    inputs_name, outputs_name = golden_files(graph, phase)
    inputs = polygraphy_json.read_inputs(folder / inputs_name)
    outputs = polygraphy_json.read_outputs(folder / outputs_name)
    if len(inputs) != len(outputs) or not inputs:
        raise BundleError(
            f"{inputs_name} has {len(inputs)} runs and {outputs_name} {len(outputs)}; export the "
            "bundle again"
        )
    return [GoldenCase(i, o) for i, o in zip(inputs, outputs, strict=True)]


def golden_files(graph: str, phase: Phase) -> tuple[str, str]:
    """Names of the inputs and the outputs file within the bundle."""
    stem = f"{GOLDEN_FOLDER}/{PREFIXES[graph]}{phase}"
    return f"{stem}.inputs.json", f"{stem}.outputs.json"


def _named(cache: Sequence[FloatArray], name: Any, dtype: np.dtype[Any]) -> dict[str, FloatArray]:
    parts = ("key", "value")
    return {
        name(i // 2, parts[i % 2]): np.ascontiguousarray(array, dtype=dtype)
        for i, array in enumerate(cache)
    }
