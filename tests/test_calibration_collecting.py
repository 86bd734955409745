"""Proxies are example-balanced means, whatever the batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from calibration_models import BOTH, hooks_at_sites, prompter_of, random_loaded, scenes
from hook_oracle import SITE_PATHS

from p2p_export.calibration.collecting import collect_proxies
from p2p_export.errors import InputError
from p2p_export.proxies import SITES, STREAMS, tensor_name


def one_by_one(loaded: Any, samples: Any) -> dict[str, np.ndarray]:
    """Each sample alone through the model's own forward, outputs averaged in NumPy."""
    prompter = prompter_of(loaded)
    per_sample: dict[str, list[np.ndarray]] = {}
    for sample in samples:
        prompts = prompter.prepare([sample])
        visual = prompts.visual_mask[0].numpy()
        handles = []
        for i, layer in enumerate(loaded.model.model.language_model.layers):
            for site, path in SITE_PATHS.items():

                def keep(_m: Any, _a: Any, out: Any, key: Any = (i, site), v: Any = visual) -> None:
                    rows = out[0].double().numpy()
                    for stream, mask in (("image", v), ("text", ~v)):
                        name = f"layers.{key[0]}.{key[1]}.{stream}"
                        per_sample.setdefault(name, []).append(rows[mask].mean(0))

                handles.append(layer.get_submodule(path).register_forward_hook(keep))
        with torch.no_grad():
            loaded.model(**prompts.inputs, use_cache=False)
        for handle in handles:
            handle.remove()
    return {name: np.mean(means, axis=0) for name, means in per_sample.items()}


@pytest.mark.parametrize("name", BOTH)
def test_equals_means_taken_one_sample_at_a_time(name: str) -> None:
    loaded = random_loaded(name, calm=True)
    samples = scenes(7).samples
    proxies = collect_proxies(loaded, prompter_of(loaded), samples, batch_size=3)
    oracle = one_by_one(loaded, samples)
    assert set(proxies.tensors) == set(oracle)
    assert len(oracle) == 3 * len(SITES) * len(STREAMS)
    for key, value in oracle.items():
        assert np.abs(proxies.tensors[key] - value).max() <= 1e-6 * np.abs(value).max(), key


def test_the_batch_size_does_not_matter() -> None:
    loaded = random_loaded("tiny-llava", calm=True)
    samples = scenes(7).samples
    prompter = prompter_of(loaded)
    one, five = (
        collect_proxies(loaded, prompter, samples, batch_size=size).tensors for size in (1, 5)
    )
    for key, value in one.items():
        assert np.abs(five[key] - value).max() <= 1e-6 * np.abs(value).max()


def test_a_sample_counts_once_however_long_it_is() -> None:
    """The mean of a short and a long prompt differs from the mean over all their tokens."""
    loaded = random_loaded("tiny-llava")
    short, long = sorted(scenes(6).samples, key=lambda s: len(s.question))[::5]
    prompter = prompter_of(loaded)
    alone = [collect_proxies(loaded, prompter, [sample]).tensors for sample in (short, long)]
    both = collect_proxies(loaded, prompter, [short, long]).tensors
    key = tensor_name(1, "down", "text")
    assert np.allclose(both[key], (alone[0][key] + alone[1][key]) / 2, atol=1e-5)
    lengths = [prompter.prepare([sample]).tokens[0].text for sample in (short, long)]
    pooled = (alone[0][key] * lengths[0] + alone[1][key] * lengths[1]) / sum(lengths)
    assert lengths[0] != lengths[1]
    assert not np.allclose(both[key], pooled, atol=1e-3)


def test_the_model_is_left_without_hooks() -> None:
    loaded = random_loaded("tiny-llava")
    collect_proxies(loaded, prompter_of(loaded), scenes(2).samples)
    assert hooks_at_sites(loaded) == 0


def test_weights_that_overflow_are_named() -> None:
    loaded = random_loaded("tiny-llava")
    with torch.no_grad():
        loaded.layers[1].mlp.up_proj.weight.fill_(float("inf"))
    with pytest.raises(InputError, match="layer 1 gives NaN or Inf at site up"):
        collect_proxies(loaded, prompter_of(loaded), scenes(2).samples)
