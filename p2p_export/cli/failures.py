"""From an exception to what the user sees: one sentence and an exit code."""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from p2p_export.errors import P2PError
from p2p_export.json_reading import shortened

# What to install for a dependency that is missing, by the name of its top module.
INSTALL: Mapping[str, str] = {
    "onnxruntime": "pip install 'p2p-export[cpu]' (or p2p-export[gpu], never both)",
    "tensorrt": "pip install 'p2p-export[trt]'; on a Jetson it comes with JetPack",
    "tensorrt_rtx": "pip install 'p2p-export[trt-rtx]'",
    "easy_vqa": "pip install easy-vqa",
    **dict.fromkeys(
        (
            "PIL",
            "accelerate",
            "huggingface_hub",
            "jinja2",
            "jsonschema",
            "onnx",
            "onnx_graphsurgeon",
            "onnx_ir",
            "onnxscript",
            "polygraphy",
            "rich",
            "safetensors",
            "tokenizers",
            "torch",
            "transformers",
        ),
        "pip install 'p2p-export[cpu]'",
    ),
}

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# What no file can be called, wherever the name was given.
NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


class TerminatedError(BaseException):
    """A signal that asks the process to end; like KeyboardInterrupt nobody swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


@dataclass(frozen=True)
class Failure:
    """What to print on stderr and what to return to the shell."""

    sentence: str
    exit_code: int


def failure_of(error: BaseException) -> Failure:
    """The sentence and exit code of any exception a verb may raise."""
    if isinstance(error, P2PError):
        return Failure(_one_line(str(error)), error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted", 130)
    if isinstance(error, TerminatedError):
        return Failure(f"stopped by {error.signal.name}", 128 + error.signal)
    if isinstance(error, MemoryError):
        return Failure("not enough memory; ask for less at once or use a larger machine", 2)
    if isinstance(error, ModuleNotFoundError):
        top = (error.name or "").partition(".")[0]
        if top in INSTALL:
            return Failure(f"this needs {top}, which is not installed; {INSTALL[top]}", 2)
    if isinstance(error, OSError):
        where = f" at {error.filename}" if error.filename else ""
        if error.errno in NO_PATH:
            path = shortened(str(error.filename))
            return Failure(f"{path} can be no path here ({error.strerror}); name another", 2)
        if error.errno in NO_SPACE:
            return Failure(f"the disk is full{where}; free space or name another place", 2)
        if error.errno in NOT_ALLOWED:
            reason = (error.strerror or "permission denied").lower()
            return Failure(f"{reason}{where}; name a place you may read and write", 2)
    cause = _one_line(f"{type(error).__name__}: {error}")
    return Failure(f"p2p-export itself failed ({cause}); run again with --debug for the place", 1)


def _one_line(text: str) -> str:
    return " ".join(text.split())
