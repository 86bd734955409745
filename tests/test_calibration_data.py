"""Datasets: what is read, and one sentence with the line for whatever cannot be used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from p2p_export.calibration.datasets import content_hash, load_dataset
from p2p_export.calibration.tiny_vqa import scene
from p2p_export.calibration.tiny_vqa_composition import TASKS
from p2p_export.errors import InputError

GOOD = {"image": "a.png", "question": "is it red?", "answer": "yes"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, shade in (("a.png", 10), ("b.png", 200)):
        Image.new("RGB", (8, 8), (shade, 0, 0)).save(tmp_path / name)
    (tmp_path / "copy.png").write_bytes((tmp_path / "a.png").read_bytes())
    (tmp_path / "text.png").write_text("no image")
    cut = (tmp_path / "a.png").read_bytes()[:60]
    (tmp_path / "cut.png").write_bytes(cut)
    return tmp_path


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "data.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_a_line_becomes_a_sample(folder: Path) -> None:
    path = write(folder, {**GOOD, "task": "colour"}, "", {**GOOD, "answer": ["yes", "yeah"]})
    first, second = load_dataset(path).samples
    assert (first.question, first.answers, first.task) == ("is it red?", ("yes",), "colour")
    assert (second.answers, second.task, second.id) == (("yes", "yeah"), "all", "line 3")
    assert np.asarray(first.image.load()).tolist()[0][0] == [10, 0, 0]


def test_choices_are_listed_and_the_answer_becomes_a_letter(folder: Path) -> None:
    entry = {**GOOD, "choices": ["red", "blue"], "answer": "blue"}
    (sample,) = load_dataset(write(folder, entry)).samples
    assert sample.question.startswith("is it red?\nA. red\nB. blue\n")
    assert sample.answers == ("B",)


def test_images_are_known_by_content_not_by_name(folder: Path) -> None:
    path = write(folder, GOOD, {**GOOD, "image": "copy.png"}, {**GOOD, "image": "b.png"})
    ids = [sample.image_id for sample in load_dataset(path).samples]
    assert ids[0] == ids[1] != ids[2]


def test_images_are_relative_to_the_named_folder(folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    path = write(elsewhere, GOOD)
    assert len(load_dataset(path, images=folder).samples) == 1
    with pytest.raises(InputError, match="line 1: there is no image"):
        load_dataset(path)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{not json", "line 2 is not JSON"),
        ("[1, 2]", "line 2 is not a JSON object"),
        ("[" * 100_000, "line 2 is not JSON"),
        ({**GOOD, "imgae": "a.png"}, "line 2: unknown field 'imgae'; the fields are image,"),
        ({"image": "a.png", "answer": "yes"}, "line 2: the field 'question' is missing"),
        ({**GOOD, "question": " "}, "line 2: `question` is ' ' and must be a text"),
        ({**GOOD, "answer": "\u200b\u00a0"}, "line 2: `answer` is .* and must be a text"),
        ({**GOOD, "answer": "\ud800"}, "line 2 is not JSON"),
        ({**GOOD, "answer": 3}, "line 2: `answer` is 3 and must be a text"),
        ({**GOOD, "answer": []}, "line 2: `answer` is"),
        ({**GOOD, "choices": "red"}, "line 2: `choices` is 'red' and must be a list"),
        ({**GOOD, "choices": ["red", "blue"]}, "line 2: the answer 'yes' is neither one"),
        ({**GOOD, "image": "missing.png"}, "line 2: there is no image"),
        ({**GOOD, "image": "text.png"}, "line 2: .*text.png is not an image that can be read"),
        ({**GOOD, "image": "../a.png"}, "line 2: image '../a.png' lies outside"),
        ({**GOOD, "image": "/etc/hostname"}, "line 2: image '/etc/hostname' lies outside"),
        ({**GOOD, "image": "a\0.png"}, "line 2: image .* is not a path"),
        ({**GOOD, "image": "."}, "line 2: the image .* cannot be read"),
    ],
)
def test_a_bad_line_is_named(folder: Path, line: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        load_dataset(write(folder, GOOD, line))
    assert "\n" not in str(caught.value)


def test_an_image_cut_short_is_named(folder: Path) -> None:
    path = write(folder, {**GOOD, "image": "cut.png"})
    with pytest.raises(InputError, match=r"line 1: .*cut.png is not an image that can be read"):
        load_dataset(path).samples[0].image.load()


def test_a_link_does_not_lead_out_of_the_folder(folder: Path) -> None:
    inside = folder / "inside"
    inside.mkdir()
    (inside / "a.png").symlink_to(folder / "a.png")
    with pytest.raises(InputError, match="lies outside"):
        load_dataset(write(inside, GOOD))


def test_a_file_that_is_none_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"no data at .*none.jsonl"):
        load_dataset(folder / "none.jsonl")
    with pytest.raises(InputError, match="holds no questions"):
        load_dataset(write(folder, "", "  "))
    with pytest.raises(InputError, match="cannot be read"):
        load_dataset(folder)
    (folder / "binary").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputError, match="is not UTF-8"):
        load_dataset(folder / "binary")
    with pytest.raises(InputError, match="there is no image folder"):
        load_dataset(write(folder, GOOD), images=folder / "nowhere")
    with pytest.raises(InputError, match="ask for 1 or more"):
        load_dataset("tiny-vqa", limit=0)


def test_tiny_vqa_asks_each_task_of_each_held_out_scene() -> None:
    data = load_dataset("tiny-vqa", limit=15)
    assert [sample.task for sample in data.samples] == [*TASKS, *TASKS, *TASKS[:3]]
    assert data.image_count == 3
    assert np.array_equal(np.asarray(data.samples[7].image.load()), scene(1).image)
    with pytest.raises(InputError, match="brings its own images"):
        load_dataset("tiny-vqa", images="somewhere")


def test_easy_vqa_is_the_official_test_set() -> None:
    easy_vqa = pytest.importorskip("easy_vqa")
    questions, answers, _ = easy_vqa.get_test_questions()
    data = load_dataset("easy-vqa", limit=20)
    assert [sample.question for sample in data.samples] == questions[:20]
    assert [sample.answers for sample in data.samples] == [(answer,) for answer in answers[:20]]
    assert data.samples[0].image.load().size == (64, 64)


def test_without_its_package_easy_vqa_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "easy_vqa", None)
    with pytest.raises(InputError, match="pip install easy-vqa"):
        load_dataset("easy-vqa")


def test_the_content_hash_sees_every_part(folder: Path) -> None:
    entry = {**GOOD, "choices": ["yes", "no"], "task": "t"}
    changes = [
        {},
        {"image": "b.png"},
        {"question": "other?"},
        {"answer": "no"},
        {"choices": ["yes", "nay"]},
        {"task": "u"},
    ]
    hashes = [content_hash(load_dataset(write(folder, {**entry, **c})).samples) for c in changes]
    assert len(set(hashes)) == len(changes)
