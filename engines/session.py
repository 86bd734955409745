"""A bundle, opened: prefill and decode in NumPy, whatever runs the graph."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.bindings import (
    INPUTS_EMBEDS,
    POSITION_IDS,
)
from p2p_export.bundle import Bundle
from p2p_export.engines.backend import DecoderBackend
from p2p_export.engines.context import Context
from p2p_export.engines.onnxruntime_backend import CPU, OnnxRuntimeDecoder, OnnxRuntimeOptions
from p2p_export.engines.request import Request, as_array, check_continues, make_request
from p2p_export.engines.row_layouts import ROW_LAYOUTS
from p2p_export.engines.state import State
from p2p_export.errors import BundleError, InputError
from p2p_export.manifest import DECODER_FILE, DENSE_FILE, Manifest

BACKENDS = ("ort",)
BACKENDS_TO_COME = ("trt", "trt-rtx")

Logits = npt.NDArray[np.float32]


def open_bundle(
    path: str | os.PathLike[str],
    backend: str = "ort",
    *,
    dense: bool = False,
    providers: Sequence[str] | None = None,
    threads: int | None = None,
) -> Session:
    """Open the bundle in the folder `path` to run its decoder.

    `dense` runs the unpruned decoder, which the bundle holds beside it. `providers` are ONNX
    Runtime execution providers, the CPU's by default; one that does not start is an error, never
    replaced. `threads` is the number of threads one call may use. Raises `BundleError` when the
    bundle is incomplete or damaged, `InputError` for a backend or provider that is not there.
    """
    check_backend(backend)
    named: Any = (CPU,) if providers is None else providers
    options = OnnxRuntimeOptions(tuple(named) if isinstance(named, list) else named, threads)
    bundle = Bundle.open(path)
    return start(bundle, options, dense=dense)


def start(bundle: Bundle, options: OnnxRuntimeOptions, *, dense: bool = False) -> Session:
    """A session of a bundle that is already open."""
    name = DENSE_FILE if dense else DECODER_FILE
    if dense and not bundle.manifest.has_dense:
        raise BundleError(
            f"the bundle {bundle.folder} holds no dense decoder; export without --no-dense"
        )
    decoder = OnnxRuntimeDecoder(bundle.path(name), bundle.manifest.decoder, options)
    manifest = bundle.manifest
    return Session(
        manifest,
        decoder,
        graph=manifest.files[name].sha256,
        elided_layers=() if dense else manifest.elided_layers,
    )


def check_backend(backend: str) -> None:
    """Raise `InputError` unless `backend` is one that runs."""
    if backend in BACKENDS_TO_COME:
        raise InputError(
            f"backend {backend!r} comes in a later version; open the bundle with {BACKENDS[0]!r}"
        )
    if backend not in BACKENDS:
        raise InputError(f"there is no backend {backend!r}; we have {', '.join(BACKENDS)}")


class Session:
    """One decoder of a bundle. A call changes nothing in it: the context lives in the `State`.

    Hand each state to one call; a backend may continue its cache in place. `elided_layers` are
    those whose cache holds text tokens alone.
    """

    def __init__(
        self,
        manifest: Manifest,
        decoder: DecoderBackend,
        *,
        graph: str,
        elided_layers: Collection[int] = (),
    ) -> None:
        self.manifest = manifest
        self._decoder = decoder
        self._graph = graph
        self._elided_layers = frozenset(elided_layers)
        self._rows_of = ROW_LAYOUTS[manifest.layout]

    def prefill(
        self,
        inputs_embeds: npt.NDArray[Any],
        position_ids: npt.NDArray[Any],
        visual_mask: npt.NDArray[np.bool_],
        attention_mask: npt.NDArray[Any] | None = None,
        state: State | None = None,
    ) -> tuple[Logits, State]:
        """Run rows of a prompt; with `state`, behind what it holds.

        inputs_embeds [B,S,D] float; position_ids [B,S], or [3,B,S] for MRoPE, int64; visual_mask
        [B,S] bool; attention_mask [B,S] int64 of these rows, 0 = padding on the left, or None.
        A chunk may end inside an image, a later one may bring a new image, and a visual_mask of
        all False is a text-only prompt. Returns logits [B,vocab] float32 of the last position and
        the state to go on with. Raises `InputError` for arrays that do not fit.
        """
        request = make_request(
            inputs_embeds,
            position_ids,
            visual_mask,
            attention_mask,
            hidden_size=self.manifest.decoder.hidden_size,
            position_axes=self.manifest.decoder.position_axes,
            dtype=self._decoder.embeds_dtype,
        )
        check_continues(request, state, self._graph, self.manifest.limits)
        return self._run(request, state)

    def decode(
        self,
        inputs_embeds: npt.NDArray[Any],
        position_ids: npt.NDArray[Any],
        state: State,
    ) -> tuple[Logits, State]:
        """Run one generated token per batch row, [B,1,D], behind `state`.

        Returns and raises as `prefill`.
        """
        rows = as_array(inputs_embeds, "inputs_embeds").shape
        if len(rows) != 3 or rows[1] != 1:
            raise InputError(
                f"decode takes one token per batch row, [B,1,D], and got {list(rows)}; use "
                "prefill with the state for more"
            )
        if not isinstance(state, State):
            raise InputError("decode needs the state of a prefill; prefill the prompt first")
        text = np.zeros(rows[:2], dtype=np.bool_)
        return self.prefill(inputs_embeds, position_ids, text, state=state)

    def _run(self, request: Request, state: State | None) -> tuple[Logits, State]:
        if state is None:
            cache: Any = self._decoder.empty_cache(request.batch)
            before = Context.empty(request.batch, self.manifest.decoder.position_axes)
        else:
            cache, before = state.cache, state.context
        rows = self._rows_of(request.visual_mask, request.attention_mask)
        context = before.with_rows(request.attention_mask, request.position_ids, rows)
        feeds = {
            INPUTS_EMBEDS: request.inputs_embeds,
            POSITION_IDS: request.position_ids,
            **rows.feeds,
            **context.feeds(),
        }
        wanted = self._decoder.input_names
        logits, after = self._decoder.run({n: feeds[n] for n in feeds if n in wanted}, cache)
        if not rows.text_mask.any():  # what this call added to text is padding
            context = context.with_text_mask(before.text_mask)
            after = after.with_layers_of(cache, self._elided_layers)
        return logits, State(after, context, self._graph)
