"""KV bytes are, in every lowering, the sum over layers of 2·B·Hkv·head_dim·itemsize·tokens held."""

from __future__ import annotations

import onnx
import pytest
from rewritten_decoders import Exported, chunk, run

MODES = {1: "proxy", 2: "frozen", 4: "proxy"}
ELIDED = (1, 4)
TEXT, VISUAL, DECODED = 4, 7, 2


@pytest.mark.parametrize("layout", ["index", "span"])
@pytest.mark.parametrize("lowering", ["literal", "fused", "elided"])
def test_cache_bytes_are_the_formula(exported: Exported, lowering: str, layout: str) -> None:
    spec = exported.spec
    chunks = [
        chunk(spec, ["ttvvvvvvvtt"] * 2, seed=1),
        *(chunk(spec, ["t", "t"], seed=2 + i) for i in range(DECODED)),
    ]
    _, host = run(exported.session(MODES, lowering, layout), spec, chunks)
    expected = 0
    for layer in range(spec.num_hidden_layers):
        tokens = TEXT + DECODED
        if lowering != "elided" or layer not in ELIDED:
            tokens += VISUAL
        expected += 2 * 2 * spec.num_key_value_heads * spec.head_dim * 4 * tokens
    assert sum(array.nbytes for array in host.cache) == expected


@pytest.mark.parametrize("layout", ["index", "span"])
def test_no_cache_of_an_elided_layer_has_the_length_of_the_context(
    exported: Exported, layout: str
) -> None:
    """Neither in what is returned nor in what the graph declares."""
    path = exported.graph(MODES, "elided", layout)
    model = onnx.load(path, load_external_data=False)
    axes = {
        value.name: value.type.tensor_type.shape.dim[2].dim_param
        for value in [*model.graph.input, *model.graph.output]
        if "key_values" in value.name or "present" in value.name
    }
    session = exported.session(MODES, "elided", layout)
    _, host = run(session, exported.spec, [chunk(exported.spec, ["ttvvvvvvvtt"])])
    for layer in range(exported.spec.num_hidden_layers):
        kinds = ("text_past", "text_context") if layer in ELIDED else ("past", "context")
        for place, part in enumerate(("key", "value")):
            assert axes[f"past_key_values.{layer}.{part}"] == kinds[0]
            assert axes[f"present.{layer}.{part}"] == kinds[1]
            columns = TEXT if layer in ELIDED else TEXT + VISUAL
            shape = (1, exported.spec.num_key_value_heads, columns, exported.spec.head_dim)
            assert host.cache[2 * layer + place].shape == shape
