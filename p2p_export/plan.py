"""The plan: which decoder layers stop computing the visual tokens, and why those."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from p2p_export.atomic_file import write_atomically
from p2p_export.errors import PlanError
from p2p_export.json_reading import read_json, shortened

Mode = Literal["dense", "proxy", "frozen"]
Newline = Literal["visual", "text"]

FORMAT = "p2p-plan/1"

# Far above any model; what loops over layers trusts it.
MOST_LAYERS = 9999
# A layer's number as a JSON key.
LAYER_NUMBER = "^(0|[1-9][0-9]{0,3})$"
# No NUL and no other control character, which no path and no model's name can hold.
_NAME = {"type": "string", "minLength": 1, "maxLength": 4096, "pattern": r"^[^\x00-\x1f\x7f]+$"}

# Checked by `Plan.from_dict`; kept next to the dataclass so that the two move together.
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": FORMAT,
    "type": "object",
    "additionalProperties": False,
    "required": ["format", "model", "layers"],
    "properties": {
        "format": {"const": FORMAT},
        "model": {
            "type": "object",
            "additionalProperties": False,
            "required": ["id"],
            "properties": {
                "id": _NAME,
                "architecture": {"type": ["string", "null"]},
                "num_hidden_layers": {
                    "type": ["integer", "null"],
                    "minimum": 1,
                    "maximum": MOST_LAYERS,
                },
                "fingerprint": {"type": ["string", "null"]},
            },
        },
        "layers": {
            "type": "object",
            "propertyNames": {"pattern": LAYER_NUMBER},
            "additionalProperties": {"enum": ["dense", "proxy", "frozen"]},
        },
        "visual": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"newline": {"enum": ["visual", "text"]}},
        },
        "proxies": {
            "type": ["object", "null"],
            "additionalProperties": False,
            "required": ["file"],
            "properties": {
                "file": _NAME,
                "sha256": {"type": ["string", "null"], "pattern": "^[0-9a-f]{64}$"},
                "kind": {"enum": ["mean", "zero", "noise", "random-token", None]},
            },
        },
        "tolerance": {"type": ["number", "null"], "minimum": 0, "exclusiveMaximum": 1},
        "planner": {"type": ["string", "null"]},
        "certificate": {"type": ["object", "null"]},
        "evidence": {"type": ["object", "null"]},
    },
}


@dataclass(frozen=True)
class PlanModel:
    """The model a plan is for. Only `id` (a folder, hub name or built-in name) is required."""

    id: str
    architecture: str | None = None
    num_hidden_layers: int | None = None
    fingerprint: str | None = None


@dataclass(frozen=True)
class PlanProxies:
    """Where the proxies lie: `file` is relative to the folder of the plan."""

    file: str
    sha256: str | None = None
    kind: str | None = None


@dataclass(frozen=True)
class Region:
    """A maximal run of consecutive planned layers, `first` to `last` inclusive."""

    first: int
    last: int

    def __contains__(self, layer: int) -> bool:
        return self.first <= layer <= self.last


@dataclass(frozen=True)
class Plan:
    """Layer -> mode, with its provenance. A layer that is not listed is dense.

    `folder` is the folder the plan was read from; it is not part of the file.
    """

    model: PlanModel
    layers: Mapping[int, Mode] = field(default_factory=dict)
    newline: Newline = "visual"
    proxies: PlanProxies | None = None
    tolerance: float | None = None
    planner: str | None = None
    certificate: Mapping[str, Any] | None = None
    evidence: Mapping[str, Any] | None = None
    folder: Path | None = None

    def mode(self, layer: int) -> Mode:
        return self.layers.get(layer, "dense")

    @property
    def planned(self) -> tuple[int, ...]:
        """Layers in mode `proxy` or `frozen`, in order."""
        return tuple(sorted(i for i, mode in self.layers.items() if mode != "dense"))

    @property
    def regions(self) -> tuple[Region, ...]:
        regions: list[Region] = []
        for layer in self.planned:
            if regions and regions[-1].last == layer - 1:
                regions[-1] = Region(regions[-1].first, layer)
            else:
                regions.append(Region(layer, layer))
        return tuple(regions)

    @property
    def proxies_path(self) -> Path | None:
        """The proxies file beside the plan, or None when the plan names none."""
        if self.proxies is None:
            return None
        return (self.folder or Path()) / self.proxies.file

    def check_layers(self, num_hidden_layers: int) -> None:
        """Raise `PlanError` when the plan lists a layer that the model does not have."""
        if self.model.num_hidden_layers not in (None, num_hidden_layers):
            raise PlanError(
                f"the plan is for a model of {self.model.num_hidden_layers} layers and this model "
                f"has {num_hidden_layers}; make a plan for this model with `p2p-export plan`"
            )
        beyond = [layer for layer in self.layers if layer >= num_hidden_layers]
        if beyond:
            raise PlanError(
                f"the plan lists layer {min(beyond)} and the model has layers 0 to "
                f"{num_hidden_layers - 1}; correct `layers` in the plan"
            )

    def check_layout(self, layout: str) -> None:
        """Raise `PlanError` when `layout` cannot say which rows the plan calls visual."""
        if layout == "span" and self.newline == "text":
            raise PlanError(
                "the plan counts newline rows as text, which lie amid the visual ones, and layout "
                "`span` knows one block only; use --layout index"
            )

    @classmethod
    def from_dict(cls, document: Any, *, where: str = "plan") -> Plan:
        """Build a plan from parsed JSON; raise `PlanError` naming the field that is wrong."""
        _check_schema(document, where)
        model = PlanModel(**document["model"])
        layers = {int(k): cast(Mode, v) for k, v in document["layers"].items()}
        proxies = document.get("proxies")
        plan = cls(
            model=model,
            layers=layers,
            newline=document.get("visual", {}).get("newline", "visual"),
            proxies=PlanProxies(**proxies) if proxies else None,
            tolerance=document.get("tolerance"),
            planner=document.get("planner"),
            certificate=document.get("certificate"),
            evidence=document.get("evidence"),
        )
        if plan.planned and plan.proxies is None:
            raise PlanError(
                f"{where}: `proxies.file` is missing though layer {plan.planned[0]} is planned; "
                "name the proxies.safetensors file the plan uses"
            )
        if model.num_hidden_layers is not None:
            plan.check_layers(model.num_hidden_layers)
        return plan

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of DESIGN: what `from_dict` reads back."""
        proxies = self.proxies
        return {
            "format": FORMAT,
            "model": {
                "id": self.model.id,
                "architecture": self.model.architecture,
                "num_hidden_layers": self.model.num_hidden_layers,
                "fingerprint": self.model.fingerprint,
            },
            "layers": {str(layer): self.layers[layer] for layer in sorted(self.layers)},
            "visual": {"newline": self.newline},
            "proxies": None
            if proxies is None
            else {"file": proxies.file, "sha256": proxies.sha256, "kind": proxies.kind},
            "tolerance": self.tolerance,
            "planner": self.planner,
            "certificate": self.certificate,
            "evidence": self.evidence,
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read plan.json; raise `PlanError` with one sentence when it cannot be used."""
        try:
            document = read_json(path, error=PlanError, advice="see docs/plan-file.md")
        except FileNotFoundError:
            raise PlanError(
                f"no plan at {shortened(str(path))}; make one with `p2p-export plan`"
            ) from None
        return replace(cls.from_dict(document, where=str(path)), folder=Path(path).parent)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write plan.json, whole or not at all."""
        write_atomically(Path(path), (json.dumps(self.to_dict(), indent=2) + "\n").encode())


def _check_schema(document: Any, where: str) -> None:
    from jsonschema import Draft202012Validator, validators
    from jsonschema.exceptions import best_match

    # JSON Schema takes 8.0 for an integer; what counts with it does not.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, v: type(v) is int)
    extend: Any = validators.extend
    validator = extend(Draft202012Validator, type_checker=types)

    if isinstance(document, dict) and document.get("format", FORMAT) != FORMAT:
        found = shortened(repr(document["format"]))
        raise PlanError(
            f"{where}: `format` is {found} and this version reads {FORMAT!r}; make the plan again"
        )
    error = best_match(validator(SCHEMA).iter_errors(document))
    if error is not None:
        at = ".".join(str(part) for part in error.absolute_path)
        field_name = f"`{at}`: " if at else ""
        message = shortened(error.message)
        raise PlanError(f"{where}: {field_name}{message}; see docs/plan-file.md")
