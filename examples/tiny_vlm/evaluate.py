"""Ask an exported model through the stock processor and `generate`; print accuracy and floors.

python examples/tiny_vlm/evaluate.py FOLDER --scenes 1000 --out accuracy.json

`shuffled` asks every question with the next scene's image: what the words alone give away.
`majority` answers an easy-vqa question as its wording is most often answered in training.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from easy_vqa import (
    get_test_image_paths,
    get_test_questions,
    get_train_questions,
)
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from p2p_export.calibration.tiny_vqa import scene
from p2p_export.calibration.tiny_vqa_composition import Question

Item = tuple[Image.Image, Question]


class Answerer:
    """A checkpoint folder behind `ask`, left-padded batches, greedy."""

    def __init__(self, folder: Path) -> None:
        self.processor = AutoProcessor.from_pretrained(folder, local_files_only=True)
        self.model = AutoModelForImageTextToText.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32
        ).eval()

    def ask(self, items: Sequence[Item]) -> list[str]:
        prompts = [
            self.processor.apply_chat_template(
                [
                    {
                        "role": "user",
                        "content": [{"type": "image"}, {"type": "text", "text": q.question}],
                    }
                ],
                add_generation_prompt=True,
            )
            for _, q in items
        ]
        inputs = self.processor(
            images=[image for image, _ in items], text=prompts, padding=True, return_tensors="pt"
        )
        with torch.inference_mode():
            output = self.model.generate(**inputs)
        new = output[:, inputs["input_ids"].shape[1] :]
        return [str(text) for text in self.processor.batch_decode(new, skip_special_tokens=True)]


def scene_items(scenes: int, shift: int) -> Iterator[Item]:
    """Held-out questions with their own image (shift 0) or another scene's."""
    drawn = [scene(index) for index in range(scenes)]
    images = [Image.fromarray(one.image) for one in drawn]
    for index, one in enumerate(drawn):
        for question in one.questions:
            yield images[(index + shift) % scenes], question


def easy_items() -> Iterator[Item]:
    paths = get_test_image_paths()
    images = {k: Image.open(path).convert("RGB") for k, path in paths.items()}
    for text, answer, image in zip(*get_test_questions(), strict=True):
        yield images[image], Question("easy-vqa", text, answer)


def accuracy(answerer: Answerer, items: Iterator[Item], batch_size: int) -> dict[str, list[int]]:
    """Right and asked, per task."""
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    while batch := list(islice(items, batch_size)):
        for (_, question), answer in zip(batch, answerer.ask(batch), strict=True):
            asked[question.task] += 1
            right[question.task] += answer.strip() == question.answer
    return {task: [right[task], asked[task]] for task in asked}


def easy_majority() -> list[int]:
    """Right and asked when every wording gets its most frequent training answer."""
    votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for text, answer, _ in zip(*get_train_questions(), strict=True):
        votes[text][answer] += 1
    texts, answers, _ = get_test_questions()
    hits = [votes[text].most_common(1)[0][0] == a for text, a in zip(texts, answers, strict=True)]
    return [int(np.sum(hits)), len(hits)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=60)
    parser.add_argument("--no-easy", action="store_true", help="skip easy-vqa")
    parser.add_argument("--no-floor", action="store_true", help="skip the shuffled images")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    answerer = Answerer(arguments.folder)
    started = time.monotonic()
    results = {
        "held-out": accuracy(answerer, scene_items(arguments.scenes, 0), arguments.batch_size)
    }
    if not arguments.no_floor:
        results["shuffled"] = accuracy(
            answerer, scene_items(arguments.scenes, 1), arguments.batch_size
        )
    if not arguments.no_easy:
        results["easy-vqa test"] = accuracy(answerer, easy_items(), arguments.batch_size)
        results["easy-vqa majority"] = {"easy-vqa": easy_majority()}
    for kind, tasks in results.items():
        for task, (right, asked) in tasks.items():
            print(f"{kind:18} {task:10} {right / asked:.4f} {right}/{asked}")
    print(f"{time.monotonic() - started:.0f} s")
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
