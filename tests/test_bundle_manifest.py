"""The manifest is read strictly: every field is there, of its type, and nothing beside it."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p_export.errors import BundleError
from p2p_export.json_schema import first_error
from p2p_export.manifest import (
    DECODER_FILE,
    Binding,
    BundleFile,
    BundleModel,
    Golden,
    GraphBindings,
    Limits,
    Manifest,
    Positions,
    TokenIds,
)
from p2p_export.manifest_schema import SCHEMA, manifest_sha256
from p2p_export.models import DecoderSpec

MANIFEST = Manifest(
    versions={"p2p-export": "0.1.0"},
    target="ort",
    precision="fp32",
    lowering="fused",
    layout="index",
    model=BundleModel("tiny", "qwen2_5_vl", "ab" * 32),
    decoder=DecoderSpec(4, 48, 80, 4, 2, 12, 61, 1e-6, 3, (2, 2, 2)),
    layers={1: "proxy", 3: "frozen"},
    newline="visual",
    tokens=TokenIds(image=(3,), eos=(2, 7)),
    positions=Positions("mrope", 2),
    limits=Limits(max_batch=4),
    graphs={
        DECODER_FILE: GraphBindings(
            (Binding("inputs_embeds", "float32", ("batch", "sequence", 48), "inputs_embeds"),),
            (Binding("logits", "float32", ("batch", 61), "logits"),),
        )
    },
    golden=Golden(1e-5, 1e-6, "random", {"logits": 1e-6}),
    vision_missing="left out",
    files={DECODER_FILE: BundleFile("0" * 64, 12)},
)


VISION = {
    "kind": "clip-projector",
    "inputs": ["pixel_values"],
    "rows_per_image": 16,
    "spatial_merge_size": 1,
    "window_blocks": 0,
    "graph": "vision.onnx",
    "weights": "vision.weights.safetensors",
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The manifest's document with one field set, or removed when `value` is the word DELETE; its
    own sum is that of what it says then."""
    document = copy.deepcopy(MANIFEST.to_dict())
    *parents, last = path.split("/")
    at = document
    for key in parents:
        at = at[key]
    if value == "DELETE":
        del at[last]
    else:
        at[last] = value
    return {**document, "sha256": manifest_sha256(document)}


def test_a_manifest_reads_back_as_it_was_written() -> None:
    assert Manifest.from_dict(json.loads(MANIFEST.to_json())) == MANIFEST


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("format", "p2p-bundle/2", "p2p-bundle/1"),
        ("format", "DELETE", "`format` is missing"),
        ("surprise", 1, "`surprise` is unknown"),
        ("precision", "int3", "`precision`"),
        ("decoder/hidden_size", "48", "`decoder.hidden_size`"),
        ("decoder/hidden_size", True, "`decoder.hidden_size`"),
        ("decoder/head_dim", 0, "at least 1"),
        ("decoder/hidden_size", 48.0, "`decoder.hidden_size`"),
        ("decoder/hidden_size", 64, "inputs_embeds of decoder.onnx has shape"),
        ("decoder/vocab_size", 5, "logits of decoder.onnx has shape"),
        ("decoder/num_hidden_layers", 10**9, "at most 9999"),
        ("decoder/num_key_value_heads", 3, "no multiple"),
        ("decoder/mrope_section", [], "`decoder.mrope_section` is []"),
        ("decoder/position_axes", True, "`decoder.position_axes`"),
        ("positions/scheme", "sequential", "positions are sequential"),
        ("positions/spatial_merge_size", None, "`positions.spatial_merge_size` is None"),
        ("positions/spatial_merge_size", 10**9, "at most 65536"),
        ("tokens/image", [10**30], "`tokens.image.0`"),
        ("target", "trt-9", "`target`"),
        ("layers", {"9" * 5000: "proxy"}, "`layers."),
        ("vision", {}, "`vision.kind` is missing"),
        ("vision", VISION | {"kind": "vit"}, "`vision.kind`"),
        ("vision", VISION | {"inputs": None}, "`vision.inputs`"),
        ("vision", VISION | {"inputs": ["frame_rows"]}, "does not have"),
        ("vision", VISION, "`graphs` does not list"),
        ("decoder/rms_norm_eps", 0, "above 0"),
        ("decoder/position_axes", 2, "`decoder.position_axes`"),
        ("limits/max_batch", -1, "`limits.max_batch`"),
        ("limits/max_context", "DELETE", "`limits.max_context` is missing"),
        ("layers", {"9": "proxy"}, "layer 9"),
        ("layers", {"01": "proxy"}, "`layers.01`"),
        ("layers", {"1": "pruned"}, "`layers.1`"),
        ("tokens/eos", 2, "`tokens.eos`"),
        ("golden/atol", 0, "`golden.atol`"),
        ("golden/source", "hand", "`golden.source`"),
        ("files", {}, "decoder.onnx"),
        ("graphs", {}, "decoder.onnx"),
        ("files/decoder.onnx/sha256", "abc", "`files.decoder.onnx.sha256`"),
        ("files/decoder.onnx/size", 1.5, "`files.decoder.onnx.size`"),
        ("vision", "yes", "`vision`"),
        ("newline", None, "`newline`"),
    ],
)
def test_each_wrong_field_is_named(path: str, value: Any, said: str) -> None:
    with pytest.raises(BundleError) as error:
        Manifest.from_dict(changed(path, value))
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("decoder/rms_norm_eps", 1e-5),
        ("tokens/eos", []),
        ("tokens/image", [4]),
        ("limits/max_context", 1),
        ("limits/max_batch", None),
        ("golden/atol", 1e300),
        ("golden/noise_floor", {"logits": 1.0}),
        ("precision", "fp16"),
        ("layout", "span"),
        ("lowering", "elided"),
        ("model/architecture", "llava"),
        ("newline", "text"),
        ("layers", {"1": "frozen", "3": "frozen"}),
        ("flops", {"tokens": {"total": 1}}),
    ],
)
def test_a_field_changed_since_the_export_is_seen(path: str, value: Any) -> None:
    document = {**changed(path, value), "sha256": MANIFEST.to_dict()["sha256"]}
    assert Manifest.from_dict(changed(path, value)) != MANIFEST
    with pytest.raises(BundleError, match="was changed since the export"):
        Manifest.from_dict(document)


def test_the_sum_does_not_depend_on_blanks_or_the_order_of_fields() -> None:
    document = MANIFEST.to_dict()
    turned = json.loads(json.dumps(dict(reversed(document.items()))))
    assert Manifest.from_dict(turned) == MANIFEST


@pytest.mark.parametrize("document", [None, [], 3, "p2p-bundle/1", {}])
def test_what_is_no_manifest_at_all_is_refused(document: Any) -> None:
    with pytest.raises(BundleError):
        Manifest.from_dict(document)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a\\b", "C:x", "a\nb", "a/./b"]
)
def test_a_file_name_that_could_lead_outside_is_refused(name: str) -> None:
    document = MANIFEST.to_dict()
    document["files"][name] = {"sha256": "0" * 64, "size": 0}
    with pytest.raises(BundleError, match="no plain path inside the bundle"):
        Manifest.from_dict(document)


# As we read it, an integer is written as one.
STRICT = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)
PLACES = [
    "format", "versions", "decoder", "decoder/vocab_size", "decoder/mrope_section", "layers",
    "layers/1", "tokens/image", "positions/spatial_merge_size", "limits/max_batch", "vision",
    "graphs/decoder.onnx/inputs", "graphs/decoder.onnx/inputs/0/shape", "golden/noise_floor",
    "golden/rtol", "engine", "files/decoder.onnx/size", "files/decoder.onnx/sha256", "newline",
]  # fmt: skip
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5),
    st.floats(-2, 5),
    st.sampled_from(["", "x", "proxy", "0" * 64, "text", "p2p-bundle/1"]),
    st.lists(st.one_of(st.integers(-1, 2), st.text(max_size=2)), max_size=2),
    st.dictionaries(st.sampled_from(["0", "1", "x", "logits"]), st.integers(-1, 1), max_size=2),
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PLACES), VALUES)
def test_our_reader_of_schemas_judges_as_jsonschema_does(path: str, value: Any) -> None:
    document = changed_anywhere(path, value)
    valid = STRICT(SCHEMA).is_valid(document)
    assert (first_error(document, SCHEMA) is None) == valid


def changed_anywhere(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(MANIFEST.to_dict())
    *parents, last = path.split("/")
    at: Any = document
    for key in parents:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[last] = value
    return document


def test_a_schema_that_says_more_than_we_read_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="maxLength"):
        first_error("x", {"type": "string", "maxLength": 1})
