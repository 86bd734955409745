"""What is declared, pinned and packed agrees with what is there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomllib
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "p2p_export"
ROOMS = ("calibration", "graphs", "engines")
# Modules whose distribution has another name.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "easy_vqa": "easy-vqa",
    "huggingface_hub": "transformers",
    "onnx_graphsurgeon": "onnx-graphsurgeon",
    "onnx_ir": "onnx-ir",
    "packaging": "transformers",
    "tensorrt_rtx": "tensorrt-rtx-cu13",
    "tokenizers": "transformers",
}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pins() -> dict[str, str]:
    """Distribution -> version, of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned}


def requirements(project: dict[str, Any]) -> list[Requirement]:
    extras = project["project"]["optional-dependencies"]
    lines = [*project["project"]["dependencies"], *(r for e in extras.values() for r in e)]
    return [Requirement(line) for line in lines if not line.startswith("p2p-export")]


def test_the_rooms_are_installed_only_below_p2p_export(project: dict[str, Any]) -> None:
    packages = project["tool"]["setuptools"]["packages"]
    assert all(name.split(".")[0] == "p2p_export" for name in packages)
    for room in ROOMS:
        link = PACKAGE / room
        assert link.is_symlink()
        assert not link.readlink().is_absolute()
        assert f"p2p_export.{room}" in packages


def test_every_package_folder_is_declared(project: dict[str, Any]) -> None:
    declared = set(project["tool"]["setuptools"]["packages"])
    found = {"p2p_export"}
    for folder in [PACKAGE, *(PACKAGE / room for room in ROOMS)]:
        for init in folder.rglob("__init__.py"):
            found.add(".".join(init.parent.relative_to(ROOT).parts))
    assert found == declared


def test_constraints_pin_each_cpu_dependency_within_its_range(project: dict[str, Any]) -> None:
    pinned = pins()
    elsewhere = {"onnxruntime-gpu", "tensorrt"}
    for requirement in requirements(project):
        if requirement.name in elsewhere:
            assert requirement.name not in pinned
            continue
        version = pinned[requirement.name]
        assert requirement.specifier.contains(version), requirement


def test_constraints_name_no_machine_and_no_build(project: dict[str, Any]) -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "p2p-export==" not in text
    assert all("/" not in v and "+" not in v for v in pins().values())
    assert not set(pins()) & {"pip", "setuptools", "wheel"}


def test_every_import_of_the_package_is_a_declared_dependency(project: dict[str, Any]) -> None:
    declared = {requirement.name for requirement in requirements(project)}
    for folder in [PACKAGE, *(PACKAGE / room for room in ROOMS)]:
        for path in folder.rglob("*.py"):
            for module in imported(path):
                name = DISTRIBUTIONS.get(module, module)
                known = name in declared or module in sys.stdlib_module_names
                assert known or module == "p2p_export", f"{path} imports {module}"


def imported(path: Path) -> set[str]:
    """Top-level names of the modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_files_the_package_reads_are_package_data(project: dict[str, Any]) -> None:
    data = project["tool"]["setuptools"]["package-data"]
    for package, folder in (("p2p_export.report", PACKAGE / "report"),):
        suffixes = {path.suffix for path in folder.iterdir() if path.is_file()} - {".py"}
        assert suffixes <= {Path(pattern).suffix for pattern in data[package]}
    assert (PACKAGE / "py.typed").is_file()


def test_the_interpreter_check_says_what_is_needed() -> None:
    script = ROOT / ".ci" / "find-python"
    found = subprocess.run(
        ["sh", str(script)], env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0
    assert found.stdout.strip() == sys.executable
    missing = subprocess.run(
        ["sh", str(script)], env={"PYTHON": "no-such-python", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert missing.returncode == 1
    assert "Python 3.11 or later" in missing.stderr
    assert "no-such-python" in missing.stderr
