"""What `doctor` finds out; nothing here needs more than Python itself."""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from p2p_export import __version__
from p2p_export.cli.failures import INSTALL

DISTRIBUTION = "p2p-export"

# onnxruntime and onnxruntime-gpu are one module; either will do.
RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
TENSORRT = {"tensorrt": "tensorrt", "tensorrt-rtx-cu13": "tensorrt_rtx"}

# An ONNX model, y = x + x on one float (opset 18), as `onnx` serializes it: a provider is tried
# with it where the onnx package is not installed. tests/test_cli_doctor.py makes it again.
TINY_MODEL = bytes.fromhex(
    "080812003a350a0e0a01780a017812017922034164641201675a0f0a0178120a"
    "0a08080112040a020801620f0a0179120a0a08080112040a02080142040a001012"
)


@dataclass(frozen=True)
class Fact:
    """One line about the machine."""

    name: str
    value: str


@dataclass(frozen=True)
class Package:
    """One dependency: the extra that wants it, the supported range, what is installed."""

    name: str
    extra: str
    supported: str
    installed: str | None
    verdict: str


@dataclass(frozen=True)
class Engine:
    """Something that could run a graph: does it really start here?"""

    name: str
    starts: bool
    detail: str


@dataclass(frozen=True)
class Diagnosis:
    """All findings; `problems` are sentences about what to mend, empty when all is well."""

    machine: tuple[Fact, ...]
    packages: tuple[Package, ...]
    engines: tuple[Engine, ...]
    builtin_models: tuple[str, ...]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def diagnose() -> Diagnosis:
    """Look at this machine and this Python environment."""
    from p2p_export.models.checkpoint import builtin_models

    packages = _packages()
    engines = (*_providers(), *_tensorrt())
    models = builtin_models()
    return Diagnosis(_machine(), packages, engines, models, _problems(packages, engines, models))


def _machine() -> tuple[Fact, ...]:
    page = os.sysconf("SC_PAGE_SIZE") / 2**30
    memory = f"{os.sysconf('SC_PHYS_PAGES') * page:.1f} GiB"
    available = _available_memory()
    if available is not None:
        memory += f", {available:.1f} GiB available"
    return (
        Fact(DISTRIBUTION, __version__),
        Fact("python", f"{platform.python_version()} ({sys.executable})"),
        Fact("platform", platform.platform()),
        Fact("cores", str(len(os.sched_getaffinity(0)) if _has_affinity() else os.cpu_count())),
        Fact("memory", memory),
    )


def _has_affinity() -> bool:
    return hasattr(os, "sched_getaffinity")


def _available_memory() -> float | None:
    """GiB that a new process could use, where the kernel says."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    match = re.search(r"MemAvailable:\s+(\d+) kB", text)
    return int(match[1]) / 2**20 if match else None


def _packages() -> tuple[Package, ...]:
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return ()
    found = []
    for line in lines:
        requirement, _, marker = line.partition(";")
        match = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(.*)", requirement.strip())
        if match is None or match[1] == DISTRIBUTION:
            continue
        extra = re.search(r"extra == ['\"]([^'\"]+)['\"]", marker)
        found.append(_package(match[1], extra[1] if extra else "always", match[2]))
    return tuple(found)


def _package(name: str, extra: str, supported: str) -> Package:
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Package(name, extra, supported, None, "not installed")
    return Package(name, extra, supported, installed, _verdict(installed, supported))


def _verdict(installed: str, supported: str) -> str:
    try:
        from packaging.specifiers import SpecifierSet
    except ModuleNotFoundError:
        return "range not checked (needs the package `packaging`)"
    return "ok" if SpecifierSet(supported).contains(installed, prereleases=True) else "out of range"


def _providers() -> tuple[Engine, ...]:
    try:
        import onnxruntime
    except ImportError as error:
        reason = "not installed" if isinstance(error, ModuleNotFoundError) else str(error)
        return (Engine("ONNX Runtime", False, f"{reason}; {INSTALL['onnxruntime']}"),)
    return tuple(_provider(name) for name in onnxruntime.get_available_providers())


def _provider(name: str) -> Engine:
    """Start a tiny session on the provider and see that it is the one that runs."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if name != "CPUExecutionProvider":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    title = f"ONNX Runtime {onnxruntime.__version__}, {name}"
    try:
        session = onnxruntime.InferenceSession(TINY_MODEL, options, providers=[name])
        (result,) = session.run(None, {"x": np.ones(1, dtype=np.float32)})
    except Exception as error:  # noqa: BLE001 - providers raise whatever their libraries raise
        reason = " ".join(str(error).split()).rpartition(" : ")[2]
        return Engine(title, False, f"it is listed but runs nothing here: {reason}")
    if name not in session.get_providers():
        return Engine(title, False, "it is listed but its libraries or its device are not here")
    return Engine(title, bool(result[0] == 2.0), "a one-node graph gave the right answer")


def _tensorrt() -> tuple[Engine, ...]:
    titles = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
    engines = []
    for module in TENSORRT.values():
        try:
            version = import_module(module).__version__
        except (ImportError, OSError):  # OSError: installed, and its own libraries are not found
            detail = f"not installed; {INSTALL[module]} (this version does not build for it yet)"
            engines.append(Engine(titles[module], False, detail))
        else:
            detail = f"{version} imports; this version does not build for it yet"
            engines.append(Engine(titles[module], True, detail))
    return tuple(engines)


def _problems(
    packages: tuple[Package, ...], engines: tuple[Engine, ...], models: tuple[str, ...]
) -> tuple[str, ...]:
    problems = []
    if not packages:
        problems.append("p2p-export is not installed as a package; run pip install -e '.[cpu]'")
    installed = {package.name for package in packages if package.installed}
    if installed >= set(RUNTIMES):
        problems.append(
            "onnxruntime and onnxruntime-gpu overwrite each other's files; uninstall both, then "
            "install the one you want"
        )
    if not any(e.starts for e in engines if e.name.startswith("ONNX Runtime")):
        problems.append(f"no ONNX Runtime starts here; {INSTALL['onnxruntime']}")
    toolchain = [package for package in packages if package.extra == "toolchain"]
    missing = [package.name for package in toolchain if not package.installed]
    if missing and len(missing) < len(toolchain):
        problems.append(
            f"the toolchain lacks {', '.join(missing)}; {INSTALL['torch']} "
            "(opening and running a bundle works without)"
        )
    problems += [
        f"{p.name} {p.installed} is outside {p.supported}; pip install '{p.name}{p.supported}'"
        for p in packages
        if p.verdict == "out of range"
    ]
    if toolchain and not missing and sys.version_info < (3, 11):
        problems.append("the toolchain needs Python 3.11; bundles run on 3.10")
    if not models:
        problems.append("no built-in models in this installation; install the package again")
    return tuple(problems)
