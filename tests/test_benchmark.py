"""`bench` measures both decoders in turn and says how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exported_bundles import LAYERS, MODES, bundle, change_manifest, copy_of

from p2p_export.engines.benchmark import bench_bundle
from p2p_export.errors import InputError


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_a_report_holds_figures_and_protocol(family: str) -> None:
    report = bench_bundle(
        bundle(family), visual_tokens=9, text_tokens=5, batch=2, repeats=3, threads=1
    )
    assert report.dense is not None
    layer_token = 2 * {"llava": 4 * 16, "qwen2_5_vl": 2 * 12}[family] * 4
    elided = sum(mode == "proxy" for mode in MODES.values())
    assert report.dense.kv_bytes == 2 * 14 * LAYERS * layer_token
    assert report.pruned.kv_bytes == 2 * (14 * LAYERS - 9 * elided) * layer_token
    for decoder in (report.pruned, report.dense):
        for timing in (decoder.prefill, decoder.decode):
            assert timing.repeats == 3
            assert 0 < timing.fastest_ms <= timing.lower_quartile_ms <= timing.median_ms
            assert timing.median_ms <= timing.upper_quartile_ms
    assert report.prefill_ratio == pytest.approx(
        report.pruned.prefill.median_ms / report.dense.prefill.median_ms
    )
    assert 0 < report.flops_ratio["needed"] < 1
    assert 0 < report.flops_ratio["p2p"] < 1
    assert report.machine["threads"] == 1
    assert report.versions["onnxruntime"]
    assert "alternating" in report.protocol
    json.dumps(report.to_dict())


def test_text_alone_can_be_timed() -> None:
    report = bench_bundle(bundle("qwen2_5_vl"), visual_tokens=0, text_tokens=3, repeats=1)
    assert report.flops_ratio["p2p"] == 1.0


def test_a_bundle_without_dense_decoder_has_no_ratios(tmp_path: Path) -> None:
    folder = copy_of(bundle("qwen2_5_vl"), tmp_path / "bundle")
    change_manifest(folder, lambda document: document["graphs"].pop("decoder.dense.onnx"))
    report = bench_bundle(folder, visual_tokens=4, text_tokens=2, repeats=1)
    assert (report.dense, report.prefill_ratio, report.decode_ratio) == (None, None, None)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"text_tokens": 0}, "text_tokens is 0"),
        ({"visual_tokens": -1}, "visual_tokens is -1"),
        ({"batch": 0}, "batch is 0"),
        ({"repeats": 0}, "repeats is 0"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        bench_bundle(bundle("qwen2_5_vl"), **{"visual_tokens": 4, "text_tokens": 4, **sizes})
