"""ONNX Runtime: any graph of a bundle, on the provider that was asked for and no other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2p_export.bindings import LOGITS, past_name, present_name
from p2p_export.engines.backend import Arrays
from p2p_export.errors import BundleError, InputError
from p2p_export.json_reading import is_text, shortened
from p2p_export.manifest import GraphBindings
from p2p_export.models.decoder_spec import DecoderSpec

CPU = "CPUExecutionProvider"
# ONNX Runtime starts as many as it is asked for, whatever the machine has.
MOST_THREADS = 1024
DTYPES: Mapping[str, npt.DTypeLike] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(uint8)": np.uint8,
}
# Where a provider keeps its tensors; others compute in host memory.
DEVICES = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "cuda"}


@dataclass(frozen=True)
class OnnxRuntimeOptions:
    """`providers` in order of preference; `threads` None leaves the choice to ONNX Runtime.

    Raises `InputError` for what is no list of names and no number of threads.
    """

    providers: tuple[str, ...] = (CPU,)
    threads: int | None = None
    optimize: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.providers, tuple) or not all(
            isinstance(name, str) for name in self.providers
        ):
            raise InputError(
                f"providers is {shortened(repr(self.providers))} and must be a list of names, such "
                f"as [{CPU!r}]"
            )
        if self.threads is not None and (
            type(self.threads) is not int or not 1 <= self.threads <= MOST_THREADS
        ):
            raise InputError(
                f"threads is {shortened(repr(self.threads))} and must be a whole number from 1 to "
                f"{MOST_THREADS}"
            )


def start_session(path: Path, options: OnnxRuntimeOptions) -> Any:
    """An `onnxruntime.InferenceSession` of the graph at `path`, on the providers asked for.

    Raises `InputError` when a provider cannot start and `BundleError` when the graph is refused.
    """
    runtime = import_onnxruntime()
    _check_available(runtime, options.providers)
    if not is_text(str(path.absolute())):
        raise InputError(f"{path} is no UTF-8 path, and ONNX Runtime opens no other; move it")
    settings = runtime.SessionOptions()
    settings.log_severity_level = 3
    # A bundle runs several graphs in turn: one that is done must not keep the cores busy waiting.
    settings.add_session_config_entry("session.force_spinning_stop", "1")
    if options.threads is not None:
        settings.intra_op_num_threads = options.threads
        settings.inter_op_num_threads = 1
    if not options.optimize:
        settings.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with _refusals_said(runtime, f"ONNX Runtime cannot load {path}"):
        session = runtime.InferenceSession(
            str(path.absolute()), settings, providers=list(options.providers)
        )
    session.disable_fallback()
    started = session.get_providers()
    missing = [name for name in options.providers if name not in started]
    if missing:
        raise InputError(
            f"{missing[0]} did not start (ONNX Runtime took {', '.join(started)}); "
            "`p2p-export doctor` says what it lacks"
        )
    return session


def run_graph(session: Any, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Run a session once: every output by name; inputs the graph does not have are left out."""
    names = {binding.name for binding in session.get_inputs()}
    outputs = [binding.name for binding in session.get_outputs()]
    feeds = {name: array for name, array in arrays.items() if name in names}
    with _refusals_said(import_onnxruntime(), "ONNX Runtime cannot run the graph"):
        return dict(zip(outputs, session.run(outputs, feeds), strict=True))


def differing_binding(session: Any, graph: GraphBindings) -> str | None:
    """What differs between a session's inputs and outputs and the manifest's, or None."""
    sides = (
        ("input", session.get_inputs(), graph.inputs),
        ("output", session.get_outputs(), graph.outputs),
    )
    for side, found, listed in sides:
        actual = {one.name: (_dtype_name(one.type), list(one.shape)) for one in found}
        expected = {one.name: (one.dtype, list(one.shape)) for one in listed}
        for name in sorted(set(actual) | set(expected)):
            if actual.get(name) != expected.get(name):
                return (
                    f"{side} {name} is {actual.get(name, 'absent')} in the graph and "
                    f"{expected.get(name, 'absent')} in the manifest"
                )
    return None


@dataclass(frozen=True)
class OrtCache:
    """Key and value of each layer in turn, as OrtValues [B,Hkv,P,head_dim]."""

    values: tuple[Any, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        return sum(int(np.prod(value.shape())) * self.itemsize for value in self.values)

    def with_layers_of(self, earlier: OrtCache, layers: Collection[int]) -> OrtCache:
        values = [
            earlier.values[i] if i // 2 in layers else value for i, value in enumerate(self.values)
        ]
        return OrtCache(tuple(values), self.itemsize)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """The cache as NumPy arrays, copied from the device where it lies on one."""
        return [value.numpy() for value in self.values]


class OnnxRuntimeDecoder:
    """A decoder graph in ONNX Runtime; keys and values stay OrtValues from call to call."""

    def __init__(self, path: Path, spec: DecoderSpec, options: OnnxRuntimeOptions) -> None:
        self._spec = spec
        self._session = start_session(path, options)
        self._runtime = import_onnxruntime()
        self._device = DEVICES.get(options.providers[0], "cpu")
        self._types = {one.name: one.type for one in self._session.get_inputs()}
        parts = [(i, p) for i in range(spec.num_hidden_layers) for p in ("key", "value")]
        self._past = [past_name(i, part) for i, part in parts]
        self._present = [present_name(i, part) for i, part in parts]
        missing = [name for name in self._past if name not in self._types]
        if missing:
            raise BundleError(f"{path} has no input {missing[0]}; export the bundle again")

    @property
    def input_names(self) -> frozenset[str]:
        return frozenset(self._types)

    @property
    def embeds_dtype(self) -> np.dtype[Any]:
        return np.dtype(DTYPES[self._types["inputs_embeds"]])

    @property
    def cache_dtype(self) -> np.dtype[Any]:
        return np.dtype(DTYPES[self._types[self._past[0]]])

    def empty_cache(self, batch: int) -> OrtCache:
        spec, dtype = self._spec, self.cache_dtype
        shape = (batch, spec.num_key_value_heads, 0, spec.head_dim)
        empty = self._runtime.OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype))
        return OrtCache((empty,) * len(self._past), dtype.itemsize)

    def run(self, arrays: Arrays, cache: Any) -> tuple[npt.NDArray[np.float32], OrtCache]:
        binding = self._session.io_binding()
        for name, array in arrays.items():
            binding.bind_cpu_input(name, array)
        for name, value in zip(self._past, cache.values, strict=True):
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(LOGITS, "cpu")
        for name in self._present:
            binding.bind_output(name, self._device)
        with _refusals_said(self._runtime, "ONNX Runtime cannot run the decoder"):
            self._session.run_with_iobinding(binding)
        logits, *present = binding.get_outputs()
        return logits.numpy(), OrtCache(tuple(present), cache.itemsize)


def import_onnxruntime() -> Any:
    """The `onnxruntime` module; `InputError` that says what to install when it is not there."""
    try:
        import onnxruntime
    except ImportError:
        raise InputError(
            "ONNX Runtime is not installed; `pip install onnxruntime` (or onnxruntime-gpu)"
        ) from None
    return onnxruntime


def _dtype_name(tensor_type: str) -> str:
    return np.dtype(DTYPES[tensor_type]).name if tensor_type in DTYPES else tensor_type


def _check_available(runtime: Any, providers: Sequence[str]) -> None:
    if not providers:
        raise InputError(f"no provider is named; name one, such as {CPU}")
    available = runtime.get_available_providers()
    for name in providers:
        if name not in available:
            raise InputError(f"this ONNX Runtime has no {name}; it has {', '.join(available)}")


@contextmanager
def _refusals_said(runtime: Any, what: str) -> Iterator[None]:
    state = runtime.capi.onnxruntime_pybind11_state
    names = (
        "Fail", "InvalidArgument", "NoSuchFile", "NoModel", "EngineError", "RuntimeException",
        "InvalidProtobuf", "ModelLoaded", "NotImplemented", "InvalidGraph", "EPFail",
    )  # fmt: skip
    refusals = tuple(getattr(state, name) for name in names if hasattr(state, name))
    try:
        yield
    except refusals as error:
        reason = str(error).strip().splitlines()[0]
        raise BundleError(f"{what}: {reason}") from None
