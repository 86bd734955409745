"""Write a built-in model's card (README.md) from what `evaluate.py` measured.

python examples/tiny_vlm/model_card.py FOLDER --accuracy accuracy.json --seed 1 --steps N
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from transformers import AutoConfig, AutoModelForImageTextToText

from p2p_export.calibration.tiny_vqa_composition import TASKS

CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
---

# {name}

A vision-language model of {parameters:.2f} M parameters ({architecture}; {layers} decoder layers,
{heads} heads, {kv_heads} key-value heads, 64 visual tokens a square image) that answers questions
about small pictures with one word. It exists so that every step of `p2p-export` can be tried
offline, in seconds, on a model that really looks at its image. It knows {vocabulary} words and
nothing else.

```python
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

processor = AutoProcessor.from_pretrained(FOLDER)
model = AutoModelForImageTextToText.from_pretrained(FOLDER)
question = {{"type": "text", "text": "is there a red circle?"}}
prompt = processor.apply_chat_template(
    [{{"role": "user", "content": [{{"type": "image"}}, question]}}], add_generation_prompt=True
)
inputs = processor(images=Image.open(PICTURE), text=prompt, return_tensors="pt")
answer = model.generate(**inputs)[0, inputs["input_ids"].shape[1] :]
print(processor.decode(answer, skip_special_tokens=True))
```

The prompt it was trained on:

```
{prompt}
```

## Accuracy

Stock processor and greedy `generate()`, fp16 weights computed in fp32, exact match.
`tiny-vqa`: {scenes:,} held-out scenes (split `held-out`, indices 0 to {last_scene}), one
question of each task. `easy-vqa`: all {easy_asked:,} questions of its official test split. "Other
image" asks the same questions with the next scene's image, so it is what the words alone give
away; for easy-vqa that column is the most frequent training answer to the same wording.

| task | right | asked | accuracy | other image |
|---|---|---|---|---|
{rows}

## Training

From scratch on a CPU, no pretrained weights; tiny-vqa split `train` and the official training
split of [easy-vqa](https://github.com/vzhou842/easy-VQA) (MIT), which are disjoint from the above
by image.

Seed {seed}, {steps:,} steps, in the phases of `examples/tiny_vlm/{script}`; the log and
all scripts are in that folder.

## Limits

Pictures like those it was trained on, the wordings it was trained on, one question a prompt, one
word an answer. An unknown word becomes `<unk>`.
{limits}
"""


def accuracy_rows(results: dict[str, dict[str, list[int]]]) -> list[str]:
    rows = []
    held_out, shuffled = results["held-out"], results["shuffled"]
    for task in TASKS:
        (right, asked), (floor, floor_asked) = held_out[task], shuffled[task]
        rows.append(
            f"| {task} | {right} | {asked} | {right / asked:.1%} | {floor / floor_asked:.1%} |"
        )
    right, asked = (sum(held_out[task][k] for task in TASKS) for k in (0, 1))
    floor, floor_asked = (sum(shuffled[task][k] for task in TASKS) for k in (0, 1))
    rows.append(
        f"| **all six** | {right} | {asked} | **{right / asked:.1%}** | {floor / floor_asked:.1%} |"
    )
    right, asked = results["easy-vqa test"]["easy-vqa"]
    floor, floor_asked = results["easy-vqa majority"]["easy-vqa"]
    rows.append(
        f"| easy-vqa | {right} | {asked} | **{right / asked:.1%}** | {floor / floor_asked:.1%} |"
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--accuracy", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    name = arguments.folder.resolve().name
    results = json.loads(arguments.accuracy.read_text())
    config = AutoConfig.from_pretrained(arguments.folder, local_files_only=True)
    model = AutoModelForImageTextToText.from_pretrained(arguments.folder, local_files_only=True)
    text = config.text_config
    llava = name == "tiny-llava"
    scenes = results["held-out"][TASKS[0]][1]
    limits = (
        ""
        if llava
        else "Its grid of visual tokens follows the picture's shape, but it was trained on"
        "\nsquare ones only. The folder names `PaddleOCRVLProcessor`, transformers' processor for"
        "\nthis image layout without video, because `Qwen2_5_VLProcessor` cannot be built without"
        "\ntorchvision."
    )
    card = CARD.format(
        name=name,
        parameters=model.num_parameters() / 1e6,
        architecture=config.architectures[0],
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        vocabulary=text.vocab_size,
        prompt=(
            "<s>user : <image> is there a red circle? assistant :"
            if llava
            else "<|im_start|>user <|vision_start|><|image_pad|><|vision_end|>"
            "is there a red circle?<|im_end|><|im_start|>assistant"
        ),
        scenes=scenes,
        last_scene=scenes - 1,
        easy_asked=results["easy-vqa test"]["easy-vqa"][1],
        rows="\n".join(accuracy_rows(results)),
        script=f"train_{name.replace('-', '_')}.sh",
        seed=arguments.seed,
        steps=arguments.steps,
        limits=limits,
    )
    (arguments.folder / "README.md").write_text(card)


if __name__ == "__main__":
    main()
