"""Goldens: PyTorch's answers to prompts that show mistakes, and a noise floor no graph can move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_bundles import MODES, plan_for, random_model
from hook_oracle import Chunk, hooked_logits

from p2p_export import ProxySet
from p2p_export.engines.goldens import GoldenCase, load_goldens, save_goldens
from p2p_export.errors import BundleError
from p2p_export.goldens.noise import FACTOR, decoder_golden, difference
from p2p_export.goldens.prompts import random_prompts
from p2p_export.goldens.reference import Reference, computing_in, decoder_modules, vision_modules
from p2p_export.models import family_of

FAMILIES = ("llava", "qwen2_5_vl")


def reference(name: str) -> Reference:
    model, plan = random_model(name), plan_for(name)
    return Reference(model, family_of(model.config), plan, ProxySet.for_plan(plan))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_reference_is_the_hooked_model(name: str) -> None:
    asked = reference(name)
    for prompt in random_prompts(asked.model, asked.family):
        calls = asked.run(prompt, decode_steps=2)
        chunks = [
            Chunk(
                call.prompt.inputs_embeds,
                call.prompt.position_ids,
                call.prompt.visual_mask,
                np.ones(call.prompt.visual_mask.shape, np.int64),
            )
            for call in calls
        ]
        logits, keys = hooked_logits(asked.model, MODES, asked.proxies.tensors, chunks)
        for call, expected in zip(calls, logits, strict=True):
            np.testing.assert_allclose(call.logits, expected, rtol=1e-6, atol=1e-6)
        for layer, key in enumerate(keys):
            np.testing.assert_allclose(calls[-1].cache_after[2 * layer], key, rtol=1e-6, atol=1e-6)
        assert all(call.cache_before is not None for call in calls)
        assert calls[1].cache_before[0].shape[2] == prompt.visual_mask.shape[1]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_prompts_put_images_where_mistakes_show(name: str) -> None:
    asked = reference(name)
    masks = [prompt.visual_mask for prompt in random_prompts(asked.model, asked.family)]
    assert any((mask != mask[:1]).any() for mask in masks), "rows that differ"
    assert any(mask[:, -1].any() for mask in masks), "a visual row that decides"
    assert any(not mask.any() for mask in masks), "no image"
    again = random_prompts(asked.model, asked.family)
    first = random_prompts(asked.model, asked.family)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.inputs_embeds, other.inputs_embeds)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_computing_in_another_dtype_moves_answers_and_leaves_the_model_as_found(dtype: str) -> None:
    asked = reference("qwen2_5_vl")
    before = {name: tensor.clone() for name, tensor in asked.model.state_dict().items()}
    prompt = random_prompts(asked.model, asked.family)[0]
    calls = asked.run(prompt, decode_steps=1)
    with computing_in(decoder_modules(asked.model, asked.family), dtype):
        again = asked.replay(calls)
    moved = max(float(np.abs(a.logits - b.logits).max()) for a, b in zip(calls, again, strict=True))
    largest = float(np.abs(calls[0].logits).max())
    assert 0 < moved < (1e-5 if dtype == "float64" else 0.1) * largest
    assert {t.dtype for t in asked.model.state_dict().values()} == {torch.float32}
    for name, tensor in asked.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_an_error_inside_leaves_the_model_as_found() -> None:
    asked = reference("llava")
    modules = decoder_modules(asked.model, asked.family)
    layer = modules[1]
    handle = layer.mlp.register_forward_hook(lambda *_: 1 / 0)
    try:
        with (
            pytest.raises(ZeroDivisionError),
            computing_in(modules, "float64"),
        ):
            asked.run(random_prompts(asked.model, asked.family)[0], decode_steps=0)
    finally:
        handle.remove()
    assert {t.dtype for t in asked.model.state_dict().values()} == {torch.float32}
    assert not any(m._forward_pre_hooks for m in modules)


def test_the_vision_modules_are_all_that_is_not_text() -> None:
    for name, expected in (("llava", 2), ("qwen2_5_vl", 1)):
        model = random_model(name)
        modules = vision_modules(model, family_of(model.config))
        assert len(modules) == expected
        assert model.model.language_model not in modules


def test_tolerances_are_a_multiple_of_the_measured_difference() -> None:
    asked = reference("llava")
    calls = asked.run(random_prompts(asked.model, asked.family)[0], decode_steps=1)
    with computing_in(decoder_modules(asked.model, asked.family), "float64"):
        again = asked.replay(calls)
    golden = decoder_golden(calls, again, precision="fp32", source="random")
    floor = golden.noise_floor
    assert golden.atol == FACTOR * max(floor["logits"], floor["cache"])
    assert golden.atol_of("logits") == FACTOR * floor["logits"] <= golden.atol
    assert golden.atol_of("present.0.key") == golden.atol
    assert golden.atol < 1e-3 * float(np.abs(calls[0].logits).max())


def test_the_floor_is_never_below_one_unit_in_the_last_place() -> None:
    values = np.array([3.0, -1000.0], np.float32)
    assert difference(values, values, "fp32") == pytest.approx(1000 * 2**-23)
    assert difference(values, values, "fp16") == pytest.approx(1000 * 2**-10)
    assert difference(values, values + 2, "fp32") == 2.0


def test_goldens_read_back_as_written_empty_arrays_too(tmp_path: Path) -> None:
    case = GoldenCase(
        {"past": np.zeros((1, 2, 0, 4), np.float16), "mask": np.ones((1, 3), np.int64)},
        {"logits": np.arange(5, dtype=np.float32)[None]},
    )
    save_goldens(tmp_path, "decoder.onnx", "prefill", [case, case])
    read = load_goldens(tmp_path, "decoder.onnx", "prefill")
    assert len(read) == 2
    for name, array in {**case.inputs, **case.outputs}.items():
        found = {**read[1].inputs, **read[1].outputs}[name]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("content", ["", "[]", '{"lst": 3}', '[{"x": {"array": "!"}}]'])
def test_files_that_are_no_goldens_are_refused(tmp_path: Path, content: Any) -> None:
    case = GoldenCase({"x": np.ones(1)}, {"y": np.ones(1)})
    save_goldens(tmp_path, "decoder.onnx", "decode", [case])
    (tmp_path / "golden" / "decode.inputs.json").write_text(content)
    with pytest.raises(BundleError):
        load_goldens(tmp_path, "decoder.onnx", "decode")
