"""The schema of manifest.json, and the digest that holds it as it was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from p2p_export.models.vision import SCHEMA as VISION_SCHEMA
from p2p_export.plan import LAYER_NUMBER, MOST_LAYERS

FORMAT = "p2p-bundle/1"
# What a bundle may be for; the schema of later versions knows more.
TARGETS = ("ort",)

# What counts tokens, rows and ids is int32 at most in every runtime.
_LARGEST = 2**31 - 1
_COUNT = {"type": ["integer", "null"], "minimum": 1, "maximum": _LARGEST}
_ID = {"type": "integer", "minimum": 0, "maximum": _LARGEST}
_WIDTH = {"type": "integer", "minimum": 1, "maximum": _LARGEST}
_BYTES = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_TEXT = {"type": "string", "minLength": 1}
_NUMBER = {"type": "number", "minimum": 0}
_IDS = {"type": "array", "items": _ID}


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
            "target": {"enum": list(TARGETS)},
            "precision": {"enum": ["fp32", "fp16", "bf16"]},
            "lowering": {"enum": ["literal", "fused", "elided"]},
            "layout": {"enum": ["index", "span"]},
            "model": _record(
                {"id": _TEXT, "architecture": _TEXT, "fingerprint": {"type": ["string", "null"]}}
            ),
            "decoder": _record(
                {
                    "num_hidden_layers": {**_WIDTH, "maximum": MOST_LAYERS},
                    "hidden_size": _WIDTH,
                    "intermediate_size": _WIDTH,
                    "num_attention_heads": _WIDTH,
                    "num_key_value_heads": _WIDTH,
                    "head_dim": _WIDTH,
                    "vocab_size": _WIDTH,
                    "rms_norm_eps": {"type": "number", "exclusiveMinimum": 0},
                    "position_axes": {"enum": [1, 3]},
                    "mrope_section": _IDS,
                }
            ),
            "layers": {
                "type": "object",
                "propertyNames": {"pattern": LAYER_NUMBER},
                "additionalProperties": {"enum": ["dense", "proxy", "frozen"]},
            },
            "newline": {"enum": ["visual", "text"]},
            "tokens": _record(
                {"image": _IDS, "video": _IDS, "bos": _IDS, "eos": _IDS, "pad": _IDS}
            ),
            "positions": _record(
                {
                    "scheme": {"enum": ["sequential", "mrope"]},
                    "spatial_merge_size": {**_COUNT, "maximum": 2**16},
                }
            ),
            "limits": _record(
                {"max_context": _COUNT, "max_batch": _COUNT, "max_visual_tokens": _COUNT}
            ),
            "graphs": {
                "type": "object",
                "additionalProperties": _record({"inputs": _BINDINGS, "outputs": _BINDINGS}),
            },
            "vision": {**VISION_SCHEMA, "type": ["object", "null"]},
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
            "sha256": _SHA256,
            "files": {
                "type": "object",
                "additionalProperties": _record({"sha256": _SHA256, "size": _BYTES}),
            },
        }
    ),
}


def manifest_sha256(document: Mapping[str, Any]) -> str:
    """sha256 over the document without its own `sha256`, keys sorted and no blanks.

    It says whether the manifest is the one that was written, as the sums in `files` say it of the
    other files. It is no signature: whoever changes a bundle on purpose can compute it again.
    """
    content = {name: value for name, value in document.items() if name != "sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
