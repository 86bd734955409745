"""A session refuses what it cannot answer, with a sentence that says which argument and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from exported_bundles import bundle, change_manifest, copy_of

from p2p_export.engines import Session, State, open_bundle
from p2p_export.errors import BundleError, InputError

HIDDEN = 48


@pytest.fixture(scope="module")
def session() -> Session:
    return open_bundle(bundle("llava"), threads=1)


def arguments(rows: int = 5, batch: int = 1, **changed: Any) -> dict[str, Any]:
    visual = np.zeros((batch, rows), dtype=np.bool_)
    visual[:, 1:3] = rows > 3
    good = {
        "inputs_embeds": np.ones((batch, rows, HIDDEN), dtype=np.float32),
        "position_ids": np.tile(np.arange(rows), (batch, 1)),
        "visual_mask": visual,
    }
    return {**good, **changed}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "embeddings without batch": ({"inputs_embeds": np.ones((5, HIDDEN), np.float32)}, "[batch"),
    "embeddings of another width": ({"inputs_embeds": np.ones((1, 5, 7), np.float32)}, "48"),
    "no rows": (arguments(0), "at least one row"),
    "no batch": (arguments(5, 0), "at least one row"),
    "token ids": ({"inputs_embeds": np.ones((1, 5, HIDDEN), np.int64)}, "floating point"),
    "NaN": ({"inputs_embeds": np.full((1, 5, HIDDEN), np.nan, np.float32)}, "NaN or Inf"),
    "too large for the graph": ({"inputs_embeds": np.full((1, 5, HIDDEN), 1e300)}, "NaN or Inf"),
    "positions of three axes": ({"position_ids": np.ones((3, 1, 5), np.int64)}, "position_ids"),
    "positions too few": ({"position_ids": np.ones((1, 4), np.int64)}, "position_ids"),
    "positions that are floats": ({"position_ids": np.ones((1, 5))}, "position_ids is float64"),
    "visual mask of integers": ({"visual_mask": np.ones((1, 5), np.int64)}, "must be bool"),
    "visual mask too long": ({"visual_mask": np.ones((1, 6), np.bool_)}, "visual_mask"),
    "mask of the whole context": ({"attention_mask": np.ones((1, 9), np.int64)}, "this call"),
    "mask of floats": ({"attention_mask": np.ones((1, 5))}, "attention_mask is float64"),
    "mask of twos": ({"attention_mask": np.full((1, 5), 2)}, "0 and 1"),
    "a row that is all padding": ({"attention_mask": np.zeros((1, 5), np.int64)}, "all 0"),
    "padding on the right": ({"attention_mask": np.array([[1, 1, 1, 1, 0]])}, "pad on the left"),
    "padding amid tokens": ({"attention_mask": np.array([[1, 0, 1, 1, 1]])}, "pad on the left"),
    "visual rows on padding": ({"attention_mask": np.array([[0, 0, 1, 1, 1]])}, "neither"),
}


@pytest.mark.parametrize("case", BAD)
def test_arguments_that_do_not_fit_are_refused(session: Session, case: str) -> None:
    changed, said = BAD[case]
    with pytest.raises(InputError) as error:
        session.prefill(**arguments(**changed))
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_the_arguments_the_cases_change_are_good(session: Session) -> None:
    session.prefill(**arguments())


def prefilled(session: Session, batch: int = 1) -> State:
    return session.prefill(**arguments(batch=batch))[1]


def test_a_state_of_another_batch_is_refused(session: Session) -> None:
    with pytest.raises(InputError, match="state holds 2 batch rows and this call has 1"):
        session.prefill(**arguments(), state=prefilled(session, batch=2))


def test_a_state_of_the_other_decoder_is_refused(session: Session) -> None:
    dense = open_bundle(bundle("llava"), dense=True, threads=1)
    with pytest.raises(InputError, match="other decoder"):
        session.prefill(**arguments(), state=prefilled(dense))


def test_decode_takes_one_token_and_a_state(session: Session) -> None:
    state = prefilled(session)
    rows = np.ones((1, 2, HIDDEN), np.float32)
    with pytest.raises(InputError, match="one token per batch row"):
        session.decode(rows, np.ones((1, 2), np.int64), state)
    with pytest.raises(InputError, match="state of a prefill"):
        session.decode(rows[:, :1], np.ones((1, 1), np.int64), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [
        ("max_batch", 1, "2 batch rows"),
        ("max_context", 7, "10 tokens of context"),
        ("max_visual_tokens", 3, "4 visual tokens"),
    ],
)
def test_limits_hold_over_the_whole_context(
    tmp_path: Path, limit: str, value: int, said: str
) -> None:
    folder = copy_of(bundle("llava"), tmp_path / "bundle")
    change_manifest(folder, lambda document: document["limits"].update({limit: value}))
    limited = open_bundle(folder, threads=1)
    batch = 2 if limit == "max_batch" else 1
    with pytest.raises(InputError, match=f"{said}.* at most {value}"):
        limited.prefill(**arguments(batch=batch), state=prefilled(limited, batch))
    if limit != "max_batch":
        prefilled(limited)


def test_mrope_positions_need_three_axes() -> None:
    session = open_bundle(bundle("qwen2_5_vl"), threads=1)
    with pytest.raises(InputError, match=r"int64 \[3, 1, 5\]"):
        session.prefill(**arguments())


@pytest.mark.parametrize("backend", ["trt", "trt-rtx"])
def test_backends_to_come_are_said_to_come(backend: str) -> None:
    with pytest.raises(InputError, match="comes in a later version"):
        open_bundle(bundle("llava"), backend)


def test_an_unknown_backend_names_those_we_have() -> None:
    with pytest.raises(InputError, match="we have ort"):
        open_bundle(bundle("llava"), "openvino")


def test_a_provider_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InputError, match="no RocketExecutionProvider"):
        open_bundle(bundle("llava"), providers=["RocketExecutionProvider"])


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning")
def test_a_provider_that_does_not_start_is_never_replaced_by_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As onnxruntime-gpu does on a machine without a GPU: it lists CUDA and then uses the CPU."""
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    with pytest.raises(InputError, match="CUDAExecutionProvider did not start"):
        open_bundle(bundle("llava"), providers=both)


def test_no_provider_and_no_thread_are_refused() -> None:
    with pytest.raises(InputError, match="no provider is named"):
        open_bundle(bundle("llava"), providers=[])
    with pytest.raises(InputError, match="threads is 0"):
        open_bundle(bundle("llava"), threads=0)


def test_a_graph_that_onnx_runtime_refuses_is_a_bundle_error(tmp_path: Path) -> None:
    folder = copy_of(bundle("llava"), tmp_path / "bundle")
    graph = folder / "decoder.onnx"
    graph.write_bytes(bytes(graph.stat().st_size))
    with pytest.raises(BundleError, match=r"cannot load .*decoder\.onnx"):
        open_bundle(folder)


def test_the_dense_decoder_of_a_bundle_without_one_is_refused(tmp_path: Path) -> None:
    folder = copy_of(bundle("llava"), tmp_path / "bundle")

    def without_dense(document: dict[str, Any]) -> None:
        del document["graphs"]["decoder.dense.onnx"]

    change_manifest(folder, without_dense)
    with pytest.raises(BundleError, match="no dense decoder"):
        open_bundle(folder, dense=True)
