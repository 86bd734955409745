"""A checkpoint's config.json, checked before transformers builds anything from it.

transformers takes most values on trust and fails in as many ways as there are wrong ones, or fills
in a default model of billions of parameters; so what we and it count with is looked at here first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2p_export.errors import InputError
from p2p_export.json_reading import read_json, shortened
from p2p_export.json_schema import first_error
from p2p_export.models.decoder_spec import DecoderSpec
from p2p_export.plan import MOST_LAYERS

CONFIG_FILE = "config.json"
# What building a model from values nobody checked may raise: none of it is documented.
REFUSALS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)

_LARGEST = 2**31 - 1
_COUNT = {"type": "integer", "minimum": 1, "maximum": _LARGEST}
# Widths become tables of as many entries while a model is built.
_WIDTH = {**_COUNT, "maximum": 2**20}
_SIDE = {**_COUNT, "maximum": 2**16}
_LAYERS = {"type": "integer", "minimum": 1, "maximum": MOST_LAYERS}
_WIDTH_OR_NULL = {**_WIDTH, "type": ["integer", "null"]}
_ID = {"type": ["integer", "null"], "minimum": -1, "maximum": _LARGEST}
_POSITIVE = {"type": "number", "exclusiveMinimum": 0}
_ROPE = {
    "type": ["object", "null"],
    "properties": {
        "rope_theta": _POSITIVE,
        "factor": {"type": ["number", "null"], "exclusiveMinimum": 0},
        "mrope_section": {
            "type": "array",
            "minItems": 3,
            "items": {"type": "integer", "minimum": 0, "maximum": _LARGEST},
        },
    },
}
# Every field may be absent: transformers then knows a default, and the weights have their say.
_SIZES: Mapping[str, Any] = {
    "num_hidden_layers": _LAYERS,
    "depth": _LAYERS,
    "hidden_size": _WIDTH,
    "out_hidden_size": _WIDTH,
    "intermediate_size": _WIDTH,
    "num_attention_heads": _WIDTH,
    "num_heads": _WIDTH,
    "num_key_value_heads": _WIDTH_OR_NULL,
    "head_dim": _WIDTH_OR_NULL,
    "vocab_size": _COUNT,
    "max_position_embeddings": _COUNT,
    "rms_norm_eps": _POSITIVE,
    "layer_norm_eps": _POSITIVE,
    "hidden_act": {"type": "string", "minLength": 1},
    "rope_theta": {**_POSITIVE, "type": ["number", "null"]},
    "rope_parameters": _ROPE,
    "rope_scaling": _ROPE,
    "layer_types": {"type": ["array", "null"], "items": {"type": "string"}},
    "image_size": _SIDE,
    "patch_size": _SIDE,
    "temporal_patch_size": _SIDE,
    "spatial_merge_size": _SIDE,
    "window_size": _SIDE,
    "num_channels": _SIDE,
    "in_channels": _SIDE,
    "fullatt_block_indexes": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "bos_token_id": {"type": ["integer", "array", "null"]},
    "eos_token_id": {"type": ["integer", "array", "null"]},
    "pad_token_id": {"type": ["integer", "array", "null"]},
}
_PART = {"type": "object", "properties": {"model_type": {"type": "string"}, **_SIZES}}
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["model_type"],
    "properties": {
        "model_type": {"type": "string", "minLength": 1},
        **_SIZES,
        "text_config": _PART,
        "vision_config": _PART,
        "image_token_id": _ID,
        "image_token_index": _ID,
        "video_token_id": _ID,
        "image_seq_length": _WIDTH,
        "image_grid_pinpoints": {"type": "array", "items": {"type": "array", "items": _COUNT}},
        "tie_word_embeddings": {"type": "boolean"},
        # It can name another file to load; what we look at and what is loaded must be the same.
        "transformers_weights": {"enum": ["model.safetensors", None]},
    },
}


def read_config(folder: Path, name: str) -> dict[str, Any]:
    """The document; `InputError` names the first field that cannot be."""
    advice = "fetch the checkpoint again"
    document = read_json(folder / CONFIG_FILE, advice=advice)
    error = first_error(document, SCHEMA)
    if error is not None:
        raise InputError(f"the config of {shortened(name)}: {error}; {advice}")
    return dict(document)


def transformers_config(folder: Path, name: str, *, trust_remote_code: bool) -> Any:
    """transformers' own object of the config, once `read_config` has seen it."""
    document = read_config(folder, name)
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (*REFUSALS, *strict_dataclass_errors()) as error:
        raise InputError(
            f"the config of {shortened(name)} (model_type {document['model_type']!r}) is none that "
            f"transformers can read: {reason_of(error)}; fetch the checkpoint again"
        ) from None


def check_spec(spec: DecoderSpec, name: str) -> None:
    """Raise `InputError` for a decoder whose sizes do not go together."""
    problem = None
    if spec.num_attention_heads % spec.num_key_value_heads:
        problem = (
            f"{spec.num_attention_heads} attention heads are no multiple of "
            f"{spec.num_key_value_heads} key-value heads"
        )
    elif spec.head_dim % 2:
        problem = f"head_dim {spec.head_dim} is odd, and RoPE turns pairs"
    elif spec.position_axes == 3 and sum(spec.mrope_section) != spec.head_dim // 2:
        problem = (
            f"mrope_section {list(spec.mrope_section)} does not add up to half of head_dim "
            f"{spec.head_dim}"
        )
    if problem is not None:
        raise InputError(f"the config of {shortened(name)}: {problem}; fetch the checkpoint again")


def strict_dataclass_errors() -> tuple[type[Exception], ...]:
    """What transformers' configs raise for a field of the wrong type."""
    from huggingface_hub.errors import StrictDataclassError

    return (StrictDataclassError,)


def reason_of(error: Exception) -> str:
    """An exception of someone else's in a few words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A strict dataclass says the field first and what is wrong with it below.
    text = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    kind = type(error).__name__
    return shortened(text if isinstance(error, (OSError, ValueError)) else f"{kind}: {text}", 200)
