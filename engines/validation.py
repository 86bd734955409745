"""`validate`: does a bundle answer as PyTorch did when it was exported?

Each check looks at one thing and says what it found; a check that cannot be made (the `onnx`
package is missing, say) is reported as skipped, never as passed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from p2p_export.bundle import Bundle, read_manifest
from p2p_export.engines import answer_checks, session_checks, structure_checks
from p2p_export.engines.check import Check
from p2p_export.errors import P2PError

__all__ = ["Check", "ValidationReport", "validate_bundle"]

# In the order a reader wants them: files, what the graphs are made of, what they answer.
CHECKS: tuple[Callable[[Bundle], Iterator[Check]], ...] = (
    structure_checks.content,
    structure_checks.graphs_are_valid,
    structure_checks.bindings_match,
    structure_checks.plan_matches,
    structure_checks.proxies_in_graph,
    structure_checks.weights_in_place,
    answer_checks.goldens,
    answer_checks.optimizations,
    answer_checks.dense_goldens,
    answer_checks.vision_golden,
    session_checks.session_answers,
)


@dataclass(frozen=True)
class ValidationReport:
    """What was checked, in order."""

    bundle: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "bundle": self.bundle,
            "passed": self.passed,
            "checks": [asdict(check) for check in self.checks],
        }


def validate_bundle(path: str | os.PathLike[str]) -> ValidationReport:
    """Check the bundle in the folder `path`; a failing check does not stop the others.

    Raises `BundleError` when there is no bundle at all, or its manifest cannot be read.
    """
    folder = Path(path).absolute()
    manifest = read_manifest(folder)
    try:
        bundle = Bundle.open(folder)
    except P2PError as error:
        return ValidationReport(str(folder), (Check("files", False, str(error)),))
    count = f"{len(manifest.files)} files, of the sizes the manifest says"
    checks = [Check("files", True, count)]
    for check in CHECKS:
        checks += _made(check, bundle)
    return ValidationReport(str(folder), tuple(checks))


def _made(check: Callable[[Bundle], Iterator[Check]], bundle: Bundle) -> list[Check]:
    """The results of `check`. An error of ours on the way is one more, failed; a package that is
    not installed here (on a device, say) is one more, skipped."""
    made: list[Check] = []
    name = check.__name__.replace("_", " ")
    try:
        made.extend(check(bundle))
    except P2PError as error:
        made.append(Check(name, False, str(error)))
    except ModuleNotFoundError as error:
        made.append(Check(name, True, f"{error.name} is not installed here", skipped=True))
    return made
