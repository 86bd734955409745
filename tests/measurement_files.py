"""Small files as `plan`, `evaluate -o` and `bench -o` write them, for tests of what reads them."""

from __future__ import annotations

from typing import Any

# One transparent pixel.
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA"
    "60e6kgAAAABJRU5ErkJggg=="
)


def score(correct: int, total: int = 100) -> dict[str, Any]:
    half = total // 2
    tasks = {"counting": [min(correct, half), half], "reading": [max(correct - half, 0), half]}
    return {"correct": correct, "total": total, "tasks": tasks}


def flops() -> dict[str, Any]:
    return {
        "tokens": {"mean_total": 80.0, "mean_visual": 64.0},
        "p2p": {"dense": 4e8, "planned": 3e8, "ratio": 0.75},
        "needed": {"dense": 3.6e8, "planned": 2.5e8, "ratio": 0.69},
    }


def plan_document(layers: int = 4) -> dict[str, Any]:
    """A plan for `layers` layers whose last two are proxy, with the evidence planning records."""
    last = layers - 1
    return {
        "format": "p2p-plan/1",
        "model": {
            "id": "small-model",
            "architecture": "llava",
            "num_hidden_layers": layers,
            "fingerprint": "f" * 64,
        },
        "layers": {str(last - 1): "proxy", str(last): "frozen"},
        "proxies": {"file": "proxies.safetensors", "kind": "mean"},
        "tolerance": 0.05,
        "planner": "paper",
        "certificate": None,
        "evidence": {
            "data": {"name": "a.jsonl", "questions": 500, "image_count": 90, "sha256": "a" * 64},
            "seed": 7,
            "splits": {"test": {"questions": 100, "images": 20, "sha256": "b" * 64}},
            "answers": {"max_new_tokens": 1, "scoring": ["exact-match"]},
            "accuracy": {"split": "validation", "dense": score(90), "planned": score(88)},
            "curves": {
                "forward": [{"layers": [0, i], **score(80 - 20 * i)} for i in range(layers)],
                "backward": [{"layers": [i, last], **score(30 + 19 * i)} for i in range(layers)],
            },
            "flops": flops(),
            "versions": {"torch": "2.13.0"},
        },
    }


def answered(question: str = "how many ?", **changes: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "task": "counting",
        "question": question,
        "answers": ["2"],
        "dense": "2",
        "planned": "3",
        "dense_correct": True,
        "planned_correct": False,
        "image": PIXEL,
        **changes,
    }


def evaluation_document(gallery: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "data": "a.jsonl",
        "split": "test",
        "answered_by": "the bundle, in ONNX Runtime",
        "dense": score(92),
        "planned": score(91),
        "flops": flops(),
        "gallery": [answered()] if gallery is None else gallery,
    }


def bench_document() -> dict[str, Any]:
    def decoder(prefill: float, decode: float) -> dict[str, Any]:
        return {
            "prefill": {"median_ms": prefill},
            "decode": {"median_ms": decode},
            "kv_bytes": 921600,
        }

    return {
        "shapes": {"batch": 1, "visual_tokens": 64, "text_tokens": 16},
        "dense": decoder(12.5, 1.5),
        "pruned": decoder(8.25, 1.25),
        "protocol": "2 warm-ups, then 20 rounds",
        "machine": {
            "processor": "A processor",
            "cores": 2,
            "threads": None,
            "system": "Linux",
            "load_average": [0.1, 0.1, 0.1],
        },
        "versions": {"onnxruntime": "1.32.0"},
    }
