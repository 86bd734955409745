"""Questions to show, with their images in them as small PNGs."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2p_export.calibration.evaluation import AnswerPair

FIRST = 12
DIFFERING = 12
LARGEST_SIDE = 192


def gallery(pairs: Sequence[AnswerPair]) -> list[dict[str, Any]]:
    """A question of each of the first images, whatever was answered; then the first questions on
    which dense and planned differ.

    Each is the pair's own dict and `image`, a data URI of a PNG no side of which exceeds 192.
    """
    by_image: dict[str, list[int]] = {}
    for i, pair in enumerate(pairs):
        by_image.setdefault(pair.sample.image_id, []).append(i)
    # Images often bring the same tasks in the same order: take another one from each.
    chosen = [own[n % len(own)] for n, own in enumerate(list(by_image.values())[:FIRST])]
    differing = [
        i for i, pair in enumerate(pairs) if pair.dense != pair.planned and i not in chosen
    ]
    return [
        {**pairs[i].to_dict(), "image": image_uri(pairs[i].sample.image.load())}
        for i in (*chosen, *differing[:DIFFERING])
    ]


def image_uri(image: Any) -> str:
    """A PIL image as `data:image/png;base64,...`."""
    small = image.convert("RGB")
    small.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    stream = io.BytesIO()
    small.save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
