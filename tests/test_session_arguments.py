"""Whatever is handed to a session or to `open_bundle`, it works or says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_bundles import bundle

from p2p_export.engines import open_bundle
from p2p_export.engines.answering import BundleAnswerer
from p2p_export.engines.benchmark import bench_bundle
from p2p_export.errors import InputError

HIDDEN = 48


@pytest.fixture(scope="module")
def session() -> Any:
    return open_bundle(bundle("llava"), threads=1)


def arguments(length: int = 5, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "inputs_embeds": np.zeros((1, length, HIDDEN), dtype=np.float32),
        "position_ids": np.arange(length)[None],
        "visual_mask": np.zeros((1, length), dtype=np.bool_),
    }
    return {**found, **changes}


RAGGED = [[1, 2], [3]]


@pytest.mark.parametrize("name", ["inputs_embeds", "position_ids", "visual_mask", "attention_mask"])
@pytest.mark.parametrize("value", [RAGGED, "text", {}, object(), [[None] * 5], [["a"] * 5]])
def test_what_is_no_array_is_named(session: Any, name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        session.prefill(**arguments(**{name: value}))


@pytest.mark.parametrize("value", [RAGGED, "text", None, 3])
def test_decode_takes_one_row(session: Any, value: Any) -> None:
    _, state = session.prefill(**arguments())
    with pytest.raises(InputError):
        session.decode(value, np.array([[5]]), state)


@pytest.mark.parametrize("state", ["state", 3, {}, (1, 2), np.zeros(3)])
def test_a_state_that_is_none(session: Any, state: Any) -> None:
    with pytest.raises(InputError, match="state"):
        session.prefill(**arguments(), state=state)
    with pytest.raises(InputError, match="state"):
        session.decode(np.zeros((1, 1, HIDDEN), np.float32), np.array([[5]]), state)


@pytest.mark.parametrize(
    "wrong", [np.int64(-1), np.int64(2**31 - 1), np.int64(2**63 - 1), np.uint64(2**64 - 1)]
)
def test_positions_that_no_context_has(session: Any, wrong: Any) -> None:
    positions = np.arange(5).astype(wrong.dtype)[None]
    positions[0, 3] = wrong
    with pytest.raises(InputError, match="position_ids holds"):
        session.prefill(**arguments(position_ids=positions))


def test_positions_of_padding_do_not_matter(session: Any) -> None:
    mask = np.array([[0, 1, 1, 1, 1]])
    positions = np.array([[-1, 0, 1, 2, 3]])
    session.prefill(**arguments(position_ids=positions), attention_mask=mask)


@pytest.mark.parametrize("threads", ["x", 1.5, True, 0, -1, 10**9, [2]])
def test_threads_that_are_no_number_of_threads(threads: Any) -> None:
    for start in opened(threads=threads):
        with pytest.raises(InputError, match="threads is"):
            start()


def opened(**options: Any) -> list[Callable[[], Any]]:
    """Every way to start a decoder of a bundle."""
    folder = bundle("llava")
    return [
        lambda: open_bundle(folder, **options),
        lambda: BundleAnswerer(folder, **options),
        lambda: bench_bundle(folder, visual_tokens=1, text_tokens=1, **options),
    ]


@pytest.mark.parametrize("providers", ["CPUExecutionProvider", 3, [3], [None], {"a": 1}])
def test_providers_that_are_no_list_of_names(providers: Any) -> None:
    with pytest.raises(InputError, match="providers is"):
        open_bundle(bundle("llava"), providers=providers)


@pytest.mark.parametrize("path", [None, 5, b"bundle", ["bundle"], "x" * 5000, "nul\0", Path("no")])
def test_a_path_that_leads_to_no_bundle(path: Any) -> None:
    with pytest.raises(InputError) as refused:
        open_bundle(path)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"visual_tokens": 999_999_999}, "of memory"),
        ({"visual_tokens": 10**30}, "at most"),
        ({"text_tokens": 10**8}, "of memory"),
        ({"batch": 2**31 - 1, "visual_tokens": 50_000}, "of memory"),
        ({"repeats": 10**9}, "at most"),
    ],
)
def test_a_measurement_no_machine_could_make(sizes: dict[str, int], said: str) -> None:
    asked = {"visual_tokens": 1, "text_tokens": 2, "repeats": 1, **sizes}
    with pytest.raises(InputError, match=said):
        bench_bundle(bundle("llava"), **asked)


@pytest.mark.parametrize("prompt", ["caf\udce9", None, b"bytes", 3])
def test_a_prompt_that_is_no_text(prompt: Any) -> None:
    with pytest.raises(InputError, match="not UTF-8 text"):
        BundleAnswerer(bundle("llava"), threads=1).answer([], prompt)
