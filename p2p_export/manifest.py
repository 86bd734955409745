"""The manifest: what a bundle holds, and everything a runtime must know to use it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from p2p_export.errors import BundleError
from p2p_export.json_reading import shortened
from p2p_export.json_schema import first_error
from p2p_export.manifest_consistency import check_consistent
from p2p_export.manifest_schema import FORMAT, SCHEMA, manifest_sha256
from p2p_export.models.decoder_spec import DecoderSpec
from p2p_export.models.positions import PositionScheme
from p2p_export.plan import Mode, Newline

MANIFEST_FILE = "manifest.json"

DECODER_FILE = "decoder.onnx"
DENSE_FILE = "decoder.dense.onnx"
VISION_FILE = "vision.onnx"
EMBEDDING_FILE = "embedding.safetensors"
PLAN_FILE = "plan.json"
PROXIES_FILE = "proxies.safetensors"
README_FILE = "README.md"
GOLDEN_FOLDER = "golden"
PROCESSOR_FOLDER = "processor"


@dataclass(frozen=True)
class BundleFile:
    """One file of the bundle, as it was when the bundle was written; `size` in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Binding:
    """One input or output of a graph; a `shape` entry is a size or the name of a dimension."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    role: str


@dataclass(frozen=True)
class GraphBindings:
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]

    def input(self, name: str) -> Binding | None:
        """The input of that name, or None when the graph does not have it."""
        return next((binding for binding in self.inputs if binding.name == name), None)


@dataclass(frozen=True)
class BundleModel:
    """The checkpoint a bundle was made from."""

    id: str
    architecture: str
    fingerprint: str | None


@dataclass(frozen=True)
class TokenIds:
    """Ids of special tokens; each a tuple, empty when the model has none."""

    image: tuple[int, ...] = ()
    video: tuple[int, ...] = ()
    bos: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()
    pad: tuple[int, ...] = ()


@dataclass(frozen=True)
class Positions:
    """How position ids are counted (`models/positions.py`)."""

    scheme: PositionScheme
    spatial_merge_size: int | None = None


@dataclass(frozen=True)
class Limits:
    """What the engine was built for, counted in tokens and rows; None is no limit.

    `max_context` and `max_visual_tokens` count one row's context: all tokens, and the visual ones.
    """

    max_context: int | None = None
    max_batch: int | None = None
    max_visual_tokens: int | None = None


@dataclass(frozen=True)
class Golden:
    """Tolerances of the goldens: `atol` and `rtol` as in `numpy.isclose`.

    `noise_floor` is what they derive from: the measured floor of `logits`, `cache` and
    `image_features`, and the `factor` on it. `source` says where the goldens' prompt came from: the
    model's processor, or seeded random rows.
    """

    atol: float
    rtol: float
    source: str
    noise_floor: Mapping[str, float] = field(default_factory=dict)

    def atol_of(self, output: str) -> float:
        """`atol` for one output: its own where its noise floor was measured apart."""
        if output not in self.noise_floor or "factor" not in self.noise_floor:
            return self.atol
        return self.noise_floor[output] * self.noise_floor["factor"]


@dataclass(frozen=True)
class Manifest:
    """manifest.json. `layers` lists the planned layers; `files` all files but the manifest."""

    versions: Mapping[str, str]
    target: str
    precision: str
    lowering: str
    layout: str
    model: BundleModel
    decoder: DecoderSpec
    layers: Mapping[int, Mode]
    newline: Newline
    tokens: TokenIds
    positions: Positions
    limits: Limits
    graphs: Mapping[str, GraphBindings]
    golden: Golden
    vision: Mapping[str, Any] | None = None
    vision_missing: str | None = None
    engine: Mapping[str, Any] | None = None
    flops: Mapping[str, Any] | None = None
    files: Mapping[str, BundleFile] = field(default_factory=dict)

    @property
    def has_dense(self) -> bool:
        """Whether the bundle holds the dense decoder beside the pruned one."""
        return DENSE_FILE in self.graphs

    @property
    def elided_layers(self) -> tuple[int, ...]:
        """Layers of the pruned decoder whose cache holds text tokens alone."""
        if self.lowering != "elided":
            return ()
        return tuple(layer for layer, mode in self.layers.items() if mode == "proxy")

    @classmethod
    def from_dict(cls, document: Any, *, where: str = MANIFEST_FILE) -> Manifest:
        """Build a manifest from parsed JSON; raise `BundleError` naming the field at fault."""
        if isinstance(document, dict) and document.get("format", FORMAT) != FORMAT:
            found = shortened(repr(document["format"]))
            raise BundleError(
                f"{where}: `format` is {found} and this version reads {FORMAT!r}; export the "
                "bundle again"
            )
        error = first_error(document, SCHEMA)
        if error is not None:
            raise BundleError(f"{where}: {error}; export the bundle again")
        for name in document["files"]:
            check_file_name(name, where)
        if document["sha256"] != manifest_sha256(document):
            raise BundleError(
                f"{where} was changed since the export (its own sha256 differs); copy or export "
                "the bundle again"
            )
        values = {name: document[name] for name in document if name not in ("format", "sha256")}
        values |= {
            "model": BundleModel(**document["model"]),
            "decoder": DecoderSpec.from_dict(document["decoder"]),
            "layers": {int(k): cast(Mode, v) for k, v in document["layers"].items()},
            "tokens": TokenIds(**{k: tuple(v) for k, v in document["tokens"].items()}),
            "positions": Positions(**document["positions"]),
            "limits": Limits(**document["limits"]),
            "graphs": {name: _graph(entry) for name, entry in document["graphs"].items()},
            "golden": Golden(**document["golden"]),
            "files": {name: BundleFile(**entry) for name, entry in document["files"].items()},
        }
        manifest = cls(**values)
        check_consistent(manifest, where)
        return manifest

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: what `from_dict` reads back."""
        document = asdict(self)
        document["decoder"] = self.decoder.to_dict()
        document["layers"] = {str(i): self.layers[i] for i in sorted(self.layers)}
        document["files"] = {name: document["files"][name] for name in sorted(self.files)}
        plain: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **document}))
        return {**plain, "sha256": manifest_sha256(plain)}

    def to_json(self) -> bytes:
        return (json.dumps(self.to_dict(), indent=2) + "\n").encode()


def check_file_name(name: str, where: str) -> None:
    """Raise `BundleError` unless `name` is plain and relative: it can only lie in the bundle."""
    parts = name.split("/")
    plain = all(re.fullmatch(r"[^\\:\x00-\x1f]+", part) for part in parts)
    if not plain or any(part in (".", "..") for part in parts):
        raise BundleError(
            f"{where}: `files` names {name!r}, which is no plain path inside the bundle; do not "
            "use this bundle"
        )


def _graph(entry: Mapping[str, Any]) -> GraphBindings:
    def bindings(side: str) -> tuple[Binding, ...]:
        return tuple(Binding(**{**b, "shape": tuple(b["shape"])}) for b in entry[side])

    return GraphBindings(bindings("inputs"), bindings("outputs"))
