"""The manifest: what a bundle holds, and everything a runtime must know to use it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from p2p_export.errors import BundleError
from p2p_export.json_schema import first_error
from p2p_export.models.decoder_spec import DecoderSpec
from p2p_export.models.positions import PositionScheme
from p2p_export.plan import Mode, Newline

FORMAT = "p2p-bundle/1"
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

_COUNT = {"type": ["integer", "null"], "minimum": 1}
_SIZE = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string", "minLength": 1}
_NUMBER = {"type": "number", "minimum": 0}
_IDS = {"type": "array", "items": _SIZE}


def _record(properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object with exactly these fields."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


_BINDING = _record(
    {
        "name": _TEXT,
        "dtype": _TEXT,
        "shape": {"type": "array", "items": {"type": ["integer", "string"]}},
        "role": _TEXT,
    }
)
_BINDINGS = {"type": "array", "items": _BINDING}

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": FORMAT,
    **_record(
        {
            "format": {"const": FORMAT},
            "versions": {"type": "object", "additionalProperties": _TEXT},
            "target": _TEXT,
            "precision": {"enum": ["fp32", "fp16", "bf16"]},
            "lowering": {"enum": ["literal", "fused", "elided"]},
            "layout": {"enum": ["index", "span"]},
            "model": _record(
                {"id": _TEXT, "architecture": _TEXT, "fingerprint": {"type": ["string", "null"]}}
            ),
            "decoder": _record(
                {
                    "num_hidden_layers": {"type": "integer", "minimum": 1},
                    "hidden_size": {"type": "integer", "minimum": 1},
                    "intermediate_size": {"type": "integer", "minimum": 1},
                    "num_attention_heads": {"type": "integer", "minimum": 1},
                    "num_key_value_heads": {"type": "integer", "minimum": 1},
                    "head_dim": {"type": "integer", "minimum": 1},
                    "vocab_size": {"type": "integer", "minimum": 1},
                    "rms_norm_eps": {"type": "number", "exclusiveMinimum": 0},
                    "position_axes": {"enum": [1, 3]},
                    "mrope_section": _IDS,
                }
            ),
            "layers": {
                "type": "object",
                "propertyNames": {"pattern": "^(0|[1-9][0-9]*)$"},
                "additionalProperties": {"enum": ["dense", "proxy", "frozen"]},
            },
            "newline": {"enum": ["visual", "text"]},
            "tokens": _record(
                {"image": _IDS, "video": _IDS, "bos": _IDS, "eos": _IDS, "pad": _IDS}
            ),
            "positions": _record(
                {"scheme": {"enum": ["sequential", "mrope"]}, "spatial_merge_size": _COUNT}
            ),
            "limits": _record(
                {"max_context": _COUNT, "max_batch": _COUNT, "max_visual_tokens": _COUNT}
            ),
            "graphs": {
                "type": "object",
                "additionalProperties": _record({"inputs": _BINDINGS, "outputs": _BINDINGS}),
            },
            "vision": {"type": ["object", "null"]},
            "vision_missing": {"type": ["string", "null"]},
            "golden": _record(
                {
                    "atol": {"type": "number", "exclusiveMinimum": 0},
                    "rtol": _NUMBER,
                    "source": {"enum": ["processor", "random"]},
                    "noise_floor": {"type": "object", "additionalProperties": _NUMBER},
                }
            ),
            "engine": {"type": ["object", "null"]},
            "flops": {"type": ["object", "null"]},
            "files": {
                "type": "object",
                "additionalProperties": _record(
                    {"sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "size": _SIZE}
                ),
            },
        }
    ),
}


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
            raise BundleError(
                f"{where}: `format` is {document['format']!r} and this version reads {FORMAT!r}; "
                "export the bundle again"
            )
        error = first_error(document, SCHEMA)
        if error is not None:
            raise BundleError(f"{where}: {error}; export the bundle again")
        for name in document["files"]:
            check_file_name(name, where)
        values = {key: value for key, value in document.items() if key != "format"}
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
        _check_consistent(manifest, where)
        return manifest

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: what `from_dict` reads back."""
        document = asdict(self)
        document["decoder"] = self.decoder.to_dict()
        document["layers"] = {str(i): self.layers[i] for i in sorted(self.layers)}
        document["files"] = {name: document["files"][name] for name in sorted(self.files)}
        plain: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **document}))
        return plain

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


def _check_consistent(manifest: Manifest, where: str) -> None:
    beyond = [i for i in manifest.layers if i >= manifest.decoder.num_hidden_layers]
    if beyond:
        raise BundleError(
            f"{where}: `layers` lists layer {min(beyond)} and the decoder has "
            f"{manifest.decoder.num_hidden_layers}; export the bundle again"
        )
    for name in (DECODER_FILE, *manifest.graphs):
        if name not in manifest.files or name not in manifest.graphs:
            raise BundleError(
                f"{where}: {name} is not listed under both `files` and `graphs`; export the "
                "bundle again"
            )
