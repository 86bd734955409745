"""A folder with a small model, data, a plan and a bundle, as the commands of the docs expect."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from p2p_export.cli.main import main

MODEL = "my-checkpoint"
QUESTIONS = 60
# How the bundle is made; README and docs show the same command.
EXPORT = ["--plan", "plan.json", "--target", "ort", "-o", "bundle/"]
# Appended to `plan`, so that the small model is planned on few questions.
SMALL_SPLITS = ["--calibration-size", "4", "--validation-size", "12", "--test-size", "6"]


@cache
def workspace() -> Path:
    """Read only: work in a copy (`working_copy`)."""
    folder = Path(tempfile.mkdtemp(prefix="command-files-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _write_model(folder / MODEL)
    _write_data(folder)
    with working_in(folder):
        plan = ["plan", "--model", f"./{MODEL}", "--data", "questions.jsonl", "--images", "photos"]
        # Random weights answer at random: any drop is within this tolerance.
        assert main([*plan, "--tolerance", "0.9", *SMALL_SPLITS]) in (0, 1)
        _plan_two_layers(folder / "plan.json")
        assert main(EXPORT) == 0
    return folder


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def working_copy(target: Path) -> Iterator[Path]:
    """A copy of the workspace at `target`, made the current folder."""
    shutil.copytree(workspace(), target)
    with working_in(target):
        yield target


def _write_model(folder: Path) -> None:
    import torch
    from calibration_models import random_loaded, save_checkpoint

    loaded = random_loaded("tiny-llava", layers=3, calm=True)
    # It says yes or no, whichever way its last hidden state points.
    yes, no = loaded.processor.tokenizer.convert_tokens_to_ids(["yes", "no"])
    head = loaded.model.lm_head.weight
    with torch.no_grad():
        direction = torch.randn(head.shape[1], generator=torch.Generator().manual_seed(0))
        head.zero_()
        head[yes], head[no] = direction, -direction
    save_checkpoint(loaded, "tiny-llava", folder)


def _write_data(folder: Path) -> None:
    from p2p_export.calibration.datasets import load_dataset

    photos = folder / "photos"
    photos.mkdir()
    lines = []
    for sample in load_dataset("tiny-vqa", limit=QUESTIONS * 6).samples[::6]:
        name = f"{sample.image_id[:12]}.png"
        sample.image.load().save(photos / name)
        # Balanced by construction: a model that always says the same is right now and then.
        answer = ("yes", "no")[len(lines) % 2]
        question = "is there a red circle ?"
        lines.append(json.dumps({"image": name, "question": question, "answer": answer}))
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
    for copy in ("photo.png", "a.png"):
        shutil.copy(photos / name, folder / copy)


def _plan_two_layers(path: Path) -> None:
    """Whatever a random model's sweep chose, layers 1 and 2 are planned."""
    plan = json.loads(path.read_text())
    plan["layers"] = {"1": "proxy", "2": "proxy"}
    path.write_text(json.dumps(plan))
