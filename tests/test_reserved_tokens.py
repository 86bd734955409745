"""A question that spells out a token standing for an image is refused before weights load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from p2p_export.calibration import planning
from p2p_export.calibration.datasets import load_dataset
from p2p_export.errors import InputError
from p2p_export.models.checkpoint import find_checkpoint

SIZES = {"calibration_size": 1, "validation_size": 2, "test_size": 1}


def questions(folder: Path, one: str) -> Path:
    """Four images with a question each, the last of them `one`."""
    lines, samples = [], load_dataset("tiny-vqa", limit=200).samples
    images = list({sample.image_id: sample.image for sample in samples}.values())[:4]
    for number, image in enumerate(images):
        image.load().save(folder / f"{number}.png")
        question = one if number == 3 else "is there a red circle ?"
        lines.append({"image": f"{number}.png", "question": question, "answer": "yes"})
    path = folder / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.mark.parametrize("visual", ["image_token_id", "video_token_id"])
def test_it_names_the_line_and_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visual: str
) -> None:
    def never(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(planning, "load_model", never)
    checkpoint = find_checkpoint("tiny-qwen2.5-vl")
    tokens = json.loads((checkpoint.folder / "tokenizer.json").read_text())["added_tokens"]
    number = getattr(checkpoint.config, visual)
    token = next(entry["content"] for entry in tokens if entry["id"] == number)
    data = questions(tmp_path, f"is there {token} a red circle ?")
    with pytest.raises(InputError, match="line 4: the question holds") as refused:
        planning.make_plan(checkpoint.id, data, output=tmp_path / "plan.json", **SIZES)
    assert token in str(refused.value)
    assert not (tmp_path / "plan.json").exists()


def test_an_image_token_the_tokenizer_does_not_know(tmp_path: Path) -> None:
    source = find_checkpoint("tiny-llava").folder
    model = shutil.copytree(source, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    name = next(key for key in ("image_token_id", "image_token_index") if key in config)
    (model / "config.json").write_text(json.dumps({**config, name: 86}))
    data = questions(tmp_path, "None ?")
    with pytest.raises(InputError, match="knows no token 86"):
        planning.make_plan(str(model), data, output=tmp_path / "plan.json", **SIZES)
