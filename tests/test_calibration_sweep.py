"""The sweep's shared states give exactly the answers of a full patched pass per point."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from calibration_models import BOTH, batch_of, prompter_of, random_loaded, scenes
from hook_oracle import SITE_PATHS
from random_models import random_proxies

from p2p_export import ProxySet
from p2p_export.calibration.dense_pass import dense_pass
from p2p_export.calibration.scoring import is_correct
from p2p_export.calibration.shared_prefix import SharedPrefix
from p2p_export.calibration.sweep import AnswerRows, answer_rows, sweep, sweep_batch
from p2p_export.progress import SilentProgress

LAYERS = 4


def naive_row(loaded: Any, proxies: ProxySet, sample: Any, layers: range) -> torch.Tensor:
    """[D], the answer position: one unpadded sample, the model's own forward, hooks of our own."""
    prompts = prompter_of(loaded).prepare([sample])
    visual = prompts.visual_mask[..., None]
    rows: list[torch.Tensor] = []
    handles = [
        loaded.model.lm_head.register_forward_pre_hook(lambda _m, args: rows.append(args[0][0, -1]))
    ]
    for i in layers:
        for site, path in SITE_PATHS.items():
            vector = torch.tensor(proxies.tensors[f"layers.{i}.{site}.image"])

            def overwrite(_m: Any, _a: Any, out: Any, vector: Any = vector) -> Any:
                return torch.where(visual, vector, out)

            linear = loaded.model.model.language_model.layers[i].get_submodule(path)
            handles.append(linear.register_forward_hook(overwrite))
    try:
        with torch.no_grad():
            loaded.model(**prompts.inputs, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return rows[0]


def said(loaded: Any, row: torch.Tensor) -> str:
    token = int(loaded.model.lm_head(row).argmax())
    return str(loaded.processor.tokenizer.decode([token], skip_special_tokens=True)).strip()


@pytest.fixture(scope="module", params=BOTH)
def measured(request: pytest.FixtureRequest) -> tuple[Any, ProxySet, Any]:
    loaded = random_loaded(request.param, layers=LAYERS)
    samples = scenes(14).samples
    return loaded, random_proxies(loaded.spec), samples


def points(rows: AnswerRows) -> dict[range, torch.Tensor]:
    """Sweep points by the layers they patch."""
    found = {range(0): rows.dense}
    found |= {range(i + 1): row for i, row in enumerate(rows.forward)}
    return found | {range(i, LAYERS): row for i, row in enumerate(rows.backward)}


# Three scenes, the last one cut: questions that share an image, and an order that parts them.
ORDERS = {"by image": range(14), "mixed": [13, 0, 6, 1, 12, 7, 2], "one": [5]}


@pytest.mark.parametrize("order", ORDERS)
def test_every_point_equals_a_naive_pass(measured: Any, order: str) -> None:
    loaded, proxies, samples = measured
    samples = [samples[i] for i in ORDERS[order]]
    batch = batch_of(loaded, tuple(samples))
    with torch.no_grad():
        found = points(answer_rows(loaded, proxies, batch))
    assert len(found) == 2 * LAYERS
    dense = found[range(0)]
    for layers, rows in found.items():
        naive = torch.stack([naive_row(loaded, proxies, s, layers) for s in samples])
        assert (rows - naive).abs().max() < 1e-4 * naive.abs().max(), layers
        assert [said(loaded, row) for row in rows] == [said(loaded, row) for row in naive]
        if layers:
            assert (rows - dense).abs().max() > 1e-2 * dense.abs().max(), layers


def test_a_template_with_the_question_in_front_shares_nothing_and_is_right() -> None:
    loaded = random_loaded("tiny-llava", layers=2)
    loaded.processor.chat_template = (
        "{% for m in messages %}{{ m['content'][1]['text'] }} <image>{% endfor %}"
    )
    proxies = random_proxies(loaded.spec)
    samples = scenes(12).samples[3:9]
    batch = batch_of(loaded, samples)
    assert batch.visual_mask[:, -1].all()  # the answer position is a visual row
    with torch.no_grad():
        assert SharedPrefix(loaded, batch, dense_pass(loaded, batch)).shared.places.shape[1] == 0
        found = answer_rows(loaded, proxies, batch)
    for layers, rows in ((range(1), found.forward[0]), (range(1, 2), found.backward[1])):
        naive = torch.stack([naive_row(loaded, proxies, s, layers) for s in samples])
        assert (rows - naive).abs().max() < 1e-4 * naive.abs().max()


def test_what_questions_share_is_computed_once(measured: Any) -> None:
    loaded, _, samples = measured
    batch = batch_of(loaded, samples)
    with torch.no_grad():
        rows = SharedPrefix(loaded, batch, dense_pass(loaded, batch))
    assert rows.shared.places.shape[0] == 3
    assert rows.shared.visual.sum(1).tolist() == [64, 64, 64]
    assert not rows.own.visual.any()
    assert rows.own.places.shape[1] < 30


def test_the_answers_are_those_of_the_rows(measured: Any) -> None:
    loaded, proxies, samples = measured
    batch = batch_of(loaded, samples)
    swept = sweep_batch(loaded, proxies, batch, 1)
    with torch.no_grad():
        rows = answer_rows(loaded, proxies, batch)
        for answers, row in zip(
            [swept.dense, *swept.forward, *swept.backward],
            [rows.dense, *rows.forward, *rows.backward],
            strict=True,
        ):
            assert answers == [said(loaded, one) for one in row]


def test_longer_answers_begin_with_the_one_token_answers(measured: Any) -> None:
    loaded, proxies, samples = measured
    batch = batch_of(loaded, samples[:4])
    one = sweep_batch(loaded, proxies, batch, 1)
    three = sweep_batch(loaded, proxies, batch, 3)
    for short, long in zip(
        [one.dense, *one.forward, *one.backward],
        [three.dense, *three.forward, *three.backward],
        strict=True,
    ):
        assert all(b.startswith(a) for a, b in zip(short, long, strict=True))


def test_a_vector_left_out_or_two_swapped_layers_are_seen(measured: Any) -> None:
    loaded, proxies, samples = measured
    batch = batch_of(loaded, samples[:2])

    def rows(wrong: dict[str, Any]) -> torch.Tensor:
        with torch.no_grad():
            found = points(answer_rows(loaded, ProxySet(wrong), batch))
        return torch.stack(list(found.values()))

    right = rows(dict(proxies.tensors))
    turned = {".0.": ".1.", ".1.": ".0."}
    swapped = {
        next((name.replace(a, b) for a, b in turned.items() if a in name), name): value
        for name, value in proxies.tensors.items()
    }
    assert (rows(swapped) - right).abs().max() > 1e-2 * right.abs().max()
    for site in ("k", "v", "o", "down"):
        zeroed = {
            name: value * 0 if f".{site}.image" in name else value
            for name, value in proxies.tensors.items()
        }
        assert (rows(zeroed) - right).abs().max() > 1e-3 * right.abs().max(), site


def test_a_mask_off_by_one_is_seen(measured: Any) -> None:
    loaded, proxies, samples = measured
    batch = batch_of(loaded, samples[:2])
    shifted = replace(batch, visual_mask=batch.visual_mask.roll(1, dims=1))
    with torch.no_grad():
        rows = points(answer_rows(loaded, proxies, shifted))
    naive = naive_row(loaded, proxies, samples[0], range(LAYERS))
    assert (rows[range(LAYERS)][0] - naive).abs().max() > 1e-2 * naive.abs().max()


def test_curves_count_the_answers_and_say_each_layer(measured: Any) -> None:
    loaded, proxies, samples = measured
    lines: list[str] = []

    class Listening(SilentProgress):
        def say(self, line: str) -> None:
            lines.append(line)

    curves = sweep(
        loaded,
        prompter_of(loaded),
        proxies,
        samples,
        max_new_tokens=1,
        batch_size=5,
        progress=Listening(),
    )
    swept = sweep_batch(loaded, proxies, batch_of(loaded, samples), 1)
    for accuracy, answers in zip(
        [curves.dense, *curves.forward, *curves.backward],
        [swept.dense, *swept.forward, *swept.backward],
        strict=True,
    ):
        assert accuracy.correct == sum(map(is_correct, samples, answers))
        assert accuracy.total == len(samples)
    assert lines[1] == f"forward 0..0  acc {curves.forward[0]}"
    assert lines[-1] == f"backward 0..{LAYERS - 1}  acc {curves.backward[0]}"
    assert len(lines) == 1 + 2 * LAYERS
    assert curves.forward[-1].correct == curves.backward[0].correct
