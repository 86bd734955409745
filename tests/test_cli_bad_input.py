"""Wrong input gets exit code 2 and one sentence that names it, and leaves nothing half-written."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_files import MODEL, SMALL_SPLITS, working_copy

from p2p_export.cli.main import main

PLAN = ["plan", "--model", f"./{MODEL}", "--data", "questions.jsonl", "--images", "photos"]
PLAN += [*SMALL_SPLITS, "-o", "new.json"]
EXPORT = ["--plan", "plan.json", "-o", "new"]
RUN = ["run", "bundle", "--prompt", "is there a red circle ?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The workspace; tests add files of their own names to it and change none."""
    with working_copy(tmp_path_factory.mktemp("bad") / "here") as here:
        yield here


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Run a command that must be refused with these words, leaving the folder as it was."""

    def check(argv: list[str], *words: str) -> None:
        before = sorted(str(path) for path in folder.rglob("*"))
        capsys.readouterr()
        assert main(argv) == 2
        shown = capsys.readouterr()
        ours = [line for line in shown.err.splitlines() if line.startswith("p2p-export: ")]
        assert len(ours) == 1, shown.err
        assert shown.err.rstrip().endswith(ours[0])
        assert "Traceback" not in shown.err
        for word in words:
            assert word in ours[0], ours[0]
        assert shown.out == ""
        assert sorted(str(path) for path in folder.rglob("*")) == before

    return check


def changed(option: str, value: str, argv: list[str]) -> list[str]:
    """`argv` with another value behind `option`."""
    at = argv.index(option) + 1
    return [*argv[:at], value, *argv[at + 1 :]]


def new_file(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


def new_plan(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> str:
    document = json.loads((folder / "plan.json").read_text())
    change(document)
    return new_file(folder, name, json.dumps(document))


def test_an_unknown_model_name(refused: Callable[..., None], monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(changed("--model", "tiny-lava", PLAN), "no model 'tiny-lava'", "tiny-llava")
    refused([*EXPORT, "--model", "somebody/nothing"], "no model 'somebody/nothing'")
    refused(changed("--model", "./nowhere", PLAN), "no model folder at ./nowhere")


def test_a_folder_without_config(refused: Callable[..., None], folder: Path) -> None:
    refused(changed("--model", "./photos", PLAN), "config.json")
    refused(changed("--model", "./photo.png", PLAN), "is a file")


def test_an_architecture_we_do_not_know(refused: Callable[..., None], folder: Path) -> None:
    (folder / "other").mkdir()
    new_file(folder, "other/config.json", json.dumps({"model_type": "bert"}))
    refused(changed("--model", "./other", PLAN), "'bert'", "llava", "llava_next", "qwen2_5_vl")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.jsonl", None, ["none.jsonl"]),
        ("empty.jsonl", "", ["empty.jsonl", "no questions"]),
        (
            "lost.jsonl",
            '{"image": "lost.png", "question": "?", "answer": "yes"}\n',
            ["lost.png", "1"],
        ),
        (
            "field.jsonl",
            '{"image": "a.png", "question": "?", "answer": "yes", "anwser": "no"}\n',
            ["anwser", "1"],
        ),
        ("half.jsonl", '{"image": "a.png", "question": "?"}\n', ["answer"]),
        ("broken.jsonl", "{not json}\n", ["JSON"]),
    ],
)
def test_data_that_cannot_be_used(
    refused: Callable[..., None], folder: Path, name: str, content: str | None, words: list[str]
) -> None:
    if content is not None:
        new_file(folder, name, content)
    argv = changed("--images", ".", changed("--data", name, PLAN))
    refused(argv, *words)


def test_an_unreadable_image_in_the_data(refused: Callable[..., None], folder: Path) -> None:
    new_file(folder, "notes.png", "this is no picture")
    line = {"image": "notes.png", "question": "?", "answer": "yes"}
    new_file(folder, "notes.jsonl", json.dumps(line))
    refused(changed("--images", ".", changed("--data", "notes.jsonl", PLAN)), "notes.png")


def test_too_few_questions_for_the_splits(refused: Callable[..., None]) -> None:
    refused([*PLAN, "--validation-size", "5000"], "too few")


@pytest.mark.parametrize("value", ["1", "1.5", "-0.1", "nan", "three"])
def test_a_tolerance_out_of_range(refused: Callable[..., None], value: str) -> None:
    refused([*PLAN, f"--tolerance={value}"], "--tolerance", value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan["model"].update(fingerprint="0" * 64), ["fingerprint"]),
        (lambda plan: plan["model"].update(architecture="qwen2_5_vl"), ["qwen2_5_vl"]),
        (lambda plan: plan["model"].update(num_hidden_layers=30), ["30"]),
        (lambda plan: plan.update(layers={"99": "proxy"}), ["99"]),
        (lambda plan: plan.update(layers={"1": "skip"}), ["skip"]),
        (lambda plan: plan.update(colour="red"), ["colour"]),
        (lambda plan: plan.pop("layers"), ["layers"]),
        (lambda plan: plan.update(format="p2p-plan/9"), ["p2p-plan/9"]),
        (lambda plan: plan["proxies"].update(file="gone.safetensors"), ["gone.safetensors"]),
        (lambda plan: plan["proxies"].update(sha256="0" * 64), ["sha256"]),
    ],
)
def test_a_plan_that_is_wrong_or_of_another_model(
    refused: Callable[..., None], folder: Path, change: Callable[[Any], Any], words: list[str]
) -> None:
    name = new_plan(folder, "wrong.json", change)
    refused(changed("--plan", name, EXPORT), *words)


def test_a_plan_that_is_missing_or_no_json(refused: Callable[..., None], folder: Path) -> None:
    refused(changed("--plan", "gone.json", EXPORT), "no plan at gone.json")
    refused(changed("--plan", new_file(folder, "n.json", "{"), EXPORT), "not JSON")
    refused(["rewrite", "bundle/decoder.dense.onnx", "--plan", "gone.json", "-o", "p.onnx"], "gone")


def test_proxies_of_a_wrong_shape(refused: Callable[..., None], folder: Path) -> None:
    from p2p_export import ProxySet

    proxies = dict(ProxySet.load(folder / "proxies.safetensors").tensors)
    proxies["layers.1.down.image"] = np.ones(7, dtype=np.float32)
    ProxySet(proxies).save(folder / "short.safetensors")
    only_file = {"file": "short.safetensors"}
    name = new_plan(folder, "short.json", lambda plan: plan.update(proxies=only_file))
    words = ("layers.1.down.image", "[7]", "[128]")
    refused(changed("--plan", name, EXPORT), *words)
    refused(["rewrite", "bundle/decoder.dense.onnx", "--plan", name, "-o", "p.onnx"], *words)


def test_an_output_in_use(refused: Callable[..., None], folder: Path) -> None:
    refused(changed("-o", "plan.json", PLAN), "plan.json is there already")
    refused(changed("-o", "bundle", EXPORT), "bundle is in use", "--force")
    refused([*changed("-o", "photos", EXPORT), "--force"], "holds files and no bundle")
    refused(changed("-o", "photo.png", EXPORT), "photo.png")
    refused(changed("-o", "no/such/new", EXPORT), "no folder")
    refused(changed("-o", "no/such.json", PLAN), "no folder")
    rewrite = ["rewrite", "bundle/decoder.dense.onnx", "--plan", "plan.json", "-o"]
    refused([*rewrite, "photo.png"], "is there already")
    refused([*rewrite, "bundle/decoder.dense.onnx", "--force"], "the dense graph itself")
    refused(["evaluate", "bundle", "-o", "no/such/evaluation.json"], "no folder")
    refused(["bench", "bundle", "-o", "no/such/bench.json"], "no folder")


def test_the_demo_leaves_a_folder_of_the_users_alone(refused: Callable[..., None]) -> None:
    refused(["demo", "-o", "photos"], "holds files of yours")
    refused(["demo", "-o", "."], "holds files of yours")
    refused(["demo", "-o", "photo.png"], "no folder")


def test_images_and_places_for_them_that_do_not_agree(
    refused: Callable[..., None], folder: Path
) -> None:
    two = ["--image", "photo.png", "--image", "a.png"]
    place = "USER : <image> is there a red circle ? ASSISTANT :"
    refused(["run", "bundle", "--prompt", place], "image")
    refused(["run", "bundle", *two, "--prompt", place], "2", "1")
    refused(["run", "bundle", "--image", "photo.png", "--prompt", f"<image> {place}"], "2", "1")


def test_an_image_that_is_missing_or_unreadable(refused: Callable[..., None], folder: Path) -> None:
    new_file(folder, "text.png", "no picture")
    cut = (folder / "photo.png").read_bytes()[:200]
    new_file(folder, "cut.png", cut)
    refused([*RUN, "--image", "gone.png"], "gone.png")
    refused([*RUN, "--image", "text.png"], "text.png")
    refused([*RUN, "--image", "cut.png"], "cut.png")
    refused([*RUN, "--image", "photos"], "photos")


def test_a_bundle_that_is_none(refused: Callable[..., None]) -> None:
    for verb in ("validate", "bench"):
        refused([verb, "photos"], "photos")
    refused(["run", "nowhere", "--prompt", "hello"], "nowhere")
    refused(["evaluate", "nowhere"], "nowhere")
    refused(["inspect", "nowhere"], "nowhere")
    refused(["inspect", "photos"], "photos")


def test_evaluate_wants_a_bundle_or_a_plan(refused: Callable[..., None]) -> None:
    refused(["evaluate"], "either a bundle or a --plan")
    refused(["evaluate", "bundle", "--plan", "plan.json"], "either a bundle or a --plan")


def disk_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)


def test_a_full_disk(refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    disk_full(monkeypatch)
    refused(PLAN, "space")
    rewrite = ["rewrite", "bundle/decoder.dense.onnx", "--plan", "plan.json"]
    refused([*rewrite, "-o", "bundle/p.onnx"], "space")
    refused(["report", "--plan", "plan.json", "-o", "page.html"], "space")
    refused([*EXPORT, "--only", "decoder"], "space")
