"""`patched` does what DESIGN §2 says, against a decoder layer written out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from random_models import RANDOM_MODELS, random_llava, random_proxies, random_qwen2_5_vl

from p2p_export import Plan, ProxySet
from p2p_export.calibration import patched
from p2p_export.calibration.answering import cache_keyword
from p2p_export.errors import InputError, PlanError
from p2p_export.models import family_of
from p2p_export.plan import Mode, PlanModel, PlanProxies


def plan_of(layers: Mapping[int, Mode]) -> Plan:
    return Plan(PlanModel("random"), layers=layers, proxies=PlanProxies("p.safetensors"))


def proxies_of(model: Any) -> ProxySet:
    return random_proxies(family_of(model.config).decoder_spec(model.config), seed=5)


def inputs(model: Any, *, rows: int = 9, batch: int = 2) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    size = model.config.get_text_config().hidden_size
    return {
        "inputs_embeds": torch.randn(batch, rows, size),
        "attention_mask": torch.ones(batch, rows, dtype=torch.long),
    }


def run(model: Any, feed: Mapping[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        states: torch.Tensor = model.model.language_model(**feed, use_cache=False).last_hidden_state
    return states


MASK = torch.tensor([[0, 1, 1, 1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1, 0]], dtype=torch.bool)


def by_hand(
    model: Any,
    modes: Mapping[int, Mode],
    proxies: ProxySet,
    feed: Mapping[str, torch.Tensor],
    mask: torch.Tensor,
) -> np.ndarray:
    """LLaVA's decoder in float64 NumPy, row by row, with the overwriting written into it."""
    text = model.config.get_text_config()
    weights = {
        name.removeprefix("model.language_model."): value.detach().double().numpy()
        for name, value in model.named_parameters()
    }
    heads, size = text.num_attention_heads, text.head_dim
    hidden = feed["inputs_embeds"].double().numpy()
    attended = feed["attention_mask"].bool().numpy()
    batch, rows, _ = hidden.shape
    inverse = 10000.0 ** (-np.arange(0, size, 2) / size)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + text.rms_norm_eps) * weights[name]

    def rotate(x: np.ndarray, position: int) -> np.ndarray:
        angle = position * inverse
        one, two = x[: size // 2], x[size // 2 :]
        return np.concatenate(
            [one * np.cos(angle) - two * np.sin(angle), two * np.cos(angle) + one * np.sin(angle)]
        )

    for layer in range(text.num_hidden_layers):
        sites = {
            "dense": (),
            "proxy": ("q", "k", "v", "o", "gate", "up", "down"),
            "frozen": ("q", "o", "gate", "up", "down"),
        }[modes.get(layer, "dense")]

        def site(x: np.ndarray, name: str, layer: int = layer, sites: Any = sites) -> np.ndarray:
            part = "self_attn" if name in "qkvo" else "mlp"
            out = x @ weights[f"layers.{layer}.{part}.{name}_proj.weight"].T
            if name in sites:
                out[mask.numpy()] = proxies.vector(layer, name)  # type: ignore[arg-type]
            return out

        x = norm(hidden, f"layers.{layer}.input_layernorm.weight")
        q, k, v = (site(x, name).reshape(batch, rows, heads, size) for name in "qkv")
        mixed = np.zeros_like(q)
        for b in range(batch):
            for h in range(heads):
                for i in range(rows):
                    keys = [j for j in range(i + 1) if attended[b, j]] or [i]
                    query = rotate(q[b, i, h], i)
                    scores = np.array([query @ rotate(k[b, j, h], j) for j in keys]) / size**0.5
                    share = np.exp(scores - scores.max())
                    share /= share.sum()
                    mixed[b, i, h] = sum(s * v[b, j, h] for s, j in zip(share, keys, strict=True))
        hidden = hidden + site(mixed.reshape(batch, rows, -1), "o")
        x = norm(hidden, f"layers.{layer}.post_attention_layernorm.weight")
        gate = site(x, "gate")
        hidden = hidden + site(gate / (1 + np.exp(-gate)) * site(x, "up"), "down")
    return norm(hidden, "norm.weight")


@pytest.mark.parametrize(
    "modes",
    [
        {0: "proxy"},
        {1: "proxy", 2: "proxy"},
        {0: "frozen", 2: "frozen"},
        {0: "proxy", 1: "frozen", 2: "proxy"},
    ],
    ids=str,
)
def test_equals_a_decoder_written_out_by_hand(modes: dict[int, Mode]) -> None:
    model = random_llava(3)
    proxies = proxies_of(model)
    feed = inputs(model)
    with patched(model, plan_of(modes), proxies, MASK):
        ours = run(model, feed).numpy()
    oracle = by_hand(model, modes, proxies, feed, MASK)
    assert np.abs(ours - oracle).max() < 1e-4 * np.abs(oracle).max()
    assert np.abs(run(model, feed).numpy() - oracle).max() > 0.1  # the patch moved it


def test_the_oracle_tells_a_mask_that_is_off_by_one() -> None:
    model = random_llava(3)
    proxies = proxies_of(model)
    feed = inputs(model)
    with patched(model, plan_of({1: "proxy"}), proxies, MASK.roll(1, dims=1)):
        shifted = run(model, feed).numpy()
    oracle = by_hand(model, {1: "proxy"}, proxies, feed, MASK)
    assert np.abs(shifted - oracle).max() > 0.1


def test_left_padding_changes_nothing() -> None:
    model = random_llava(3)
    proxies = proxies_of(model)
    plan = plan_of({0: "proxy", 2: "frozen"})
    feed = inputs(model, batch=1)
    mask = MASK[:1]
    with patched(model, plan, proxies, mask):
        plain = run(model, feed)
    pad = 3
    padded = {
        "inputs_embeds": torch.cat([torch.randn(1, pad, 48), feed["inputs_embeds"]], 1),
        "attention_mask": torch.cat(
            [torch.zeros(1, pad, dtype=torch.long), feed["attention_mask"]], 1
        ),
        "position_ids": torch.cat([torch.zeros(1, pad), torch.arange(9.0)[None]], 1).long(),
    }
    with patched(model, plan, proxies, torch.cat([torch.zeros(1, pad, dtype=torch.bool), mask], 1)):
        assert torch.allclose(run(model, padded)[:, pad:], plain, atol=1e-4)


def test_a_prompt_in_chunks_equals_the_prompt_at_once() -> None:
    model = random_qwen2_5_vl(3)
    proxies = proxies_of(model)
    plan = plan_of({0: "proxy", 1: "frozen"})
    feed = inputs(model)
    with patched(model, plan, proxies, MASK):
        whole = run(model, feed)
    decoder = model.model.language_model
    keyword = cache_keyword(decoder)
    cache: Any = None
    states = []
    for start, end in ((0, 2), (2, 3), (3, 9)):  # the second chunk is one row, and visual
        with torch.no_grad(), patched(model, plan, proxies, MASK[:, start:end]):
            output = decoder(
                inputs_embeds=feed["inputs_embeds"][:, start:end],
                attention_mask=feed["attention_mask"][:, :end],
                position_ids=torch.arange(start, end).expand(3, 2, -1),
                use_cache=True,
                **{keyword: cache},
            )
        cache = output[keyword]
        states.append(output.last_hidden_state)
    assert torch.allclose(torch.cat(states, 1), whole, atol=1e-4)


def test_decode_steps_pass_through_as_text() -> None:
    model = random_llava(3)
    plan = plan_of({0: "proxy"})
    step = inputs(model, rows=1)
    with patched(model, plan, proxies_of(model), MASK):
        assert torch.equal(run(model, step), run(model, step))
        inside = run(model, step)
    assert torch.equal(inside, run(model, step))


def test_a_call_of_another_length_is_refused() -> None:
    model = random_llava(3)
    with (
        pytest.raises(InputError, match=r"visual mask has shape \[2, 9\].*\[2, 7\]"),
        patched(model, plan_of({0: "proxy"}), proxies_of(model), MASK),
    ):
        run(model, inputs(model, rows=7))


def test_text_rows_before_the_image_do_not_move() -> None:
    model = random_llava(3)
    feed = inputs(model)
    with patched(model, plan_of({0: "proxy", 1: "proxy"}), proxies_of(model), MASK):
        states = run(model, feed)
    dense = run(model, feed)
    assert torch.allclose(states[0, :1], dense[0, :1], atol=1e-6)
    assert torch.allclose(states[1, :4], dense[1, :4], atol=1e-6)
    assert not torch.allclose(states[0, 4:6], dense[0, 4:6], atol=1e-2)


@pytest.mark.parametrize("name", RANDOM_MODELS)
def test_the_model_is_left_as_it_was_found(name: str) -> None:
    model = RANDOM_MODELS[name](3)
    feed = inputs(model)
    before = run(model, feed)
    with (
        pytest.raises(RuntimeError),
        patched(model, plan_of({0: "proxy"}), proxies_of(model), MASK),
    ):
        raise RuntimeError
    assert torch.equal(run(model, feed), before)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("site", ["k", "v", "o", "down"])
def test_a_proxy_layer_needs_each_of_its_vectors(site: str) -> None:
    model = random_llava(3)
    tensors = dict(proxies_of(model).tensors)
    del tensors[f"layers.1.{site}.image"]
    with (
        pytest.raises(PlanError, match=rf"layers\.1\.{site}\.image"),
        patched(model, plan_of({1: "proxy"}), ProxySet(tensors), MASK),
    ):
        pass
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("site", ["k", "v", "o", "down"])
def test_each_vector_a_proxy_layer_needs_moves_the_result(site: str) -> None:
    model = random_llava(3)
    feed = inputs(model)
    proxies = proxies_of(model)
    changed = dict(proxies.tensors)
    changed[f"layers.1.{site}.image"] = changed[f"layers.2.{site}.image"]
    with patched(model, plan_of({1: "proxy"}), proxies, MASK):
        right = run(model, feed)
    with patched(model, plan_of({1: "proxy"}), ProxySet(changed), MASK):
        assert not torch.allclose(run(model, feed), right, atol=1e-2)


def test_vectors_nobody_reads_may_be_missing() -> None:
    model = random_llava(3)
    proxies = proxies_of(model)
    feed = inputs(model)
    kept = {
        name: value
        for name, value in proxies.tensors.items()
        if name.split(".")[2] in ("k", "v", "o", "down")
    }
    plan = plan_of({0: "proxy", 2: "proxy"})
    with patched(model, plan, proxies, MASK):
        full = run(model, feed)
    with patched(model, plan, ProxySet(kept), MASK):
        assert torch.equal(run(model, feed), full)
