"""`tiny-vqa` as a dataset: the held-out scenes, drawn again whenever an image is asked for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from PIL import Image

from p2p_export.calibration.samples import Sample
from p2p_export.calibration.tiny_vqa import scene
from p2p_export.calibration.tiny_vqa_composition import TASKS

# Enough for the default splits several times over; about a millisecond each.
SCENES = 1500


@dataclass(frozen=True)
class SceneImage:
    """The picture of held-out scene `index`; `image_id` is the sha256 of its pixels."""

    index: int
    image_id: str

    def load(self) -> Image.Image:
        return Image.fromarray(scene(self.index).image)


def tiny_vqa_samples(limit: int | None) -> tuple[Sample, ...]:
    """The first `limit` questions of the held-out scenes, one question of each task per scene."""
    scenes = SCENES if limit is None else -(-limit // len(TASKS))
    samples: list[Sample] = []
    for index in range(scenes):
        drawn = scene(index)
        image = SceneImage(index, hashlib.sha256(drawn.image.tobytes()).hexdigest())
        samples += [
            Sample(
                id=f"scene {index} {asked.task}",
                question=asked.question,
                answers=(asked.answer,),
                task=asked.task,
                choices=asked.choices,
                image=image,
            )
            for asked in drawn.questions
        ]
    return tuple(samples[:limit])
