"""The picture of a `tiny-vqa` composition."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from p2p_export.calibration.tiny_vqa_composition import CELL, GRID, IMAGE_SIZE, SHAPES, Composition

_RGB = np.array(
    [(205, 45, 45), (45, 160, 60), (50, 80, 205), (235, 205, 40), (140, 60, 170), (240, 135, 30)],
    dtype=np.int16,
)
_SIGN_RGB = np.array((40, 45, 55), dtype=np.int16)
_GLYPHS = (  # 5 columns x 7 rows, one string of rows per letter of LETTERS
    "##### #.... #.... ####. #.... #.... #####",
    "##### #.... #.... ####. #.... #.... #....",
    "#...# #...# #...# ##### #...# #...# #...#",
    "#...# #..#. #.#.. ##... #.#.. #..#. #...#",
    "#.... #.... #.... #.... #.... #.... #####",
    "#...# ##..# ##..# #.#.# #..## #..## #...#",
    "##### ..#.. ..#.. ..#.. ..#.. ..#.. ..#..",
    "#...# #...# #...# #...# #...# #...# .###.",
    "#...# #...# .#.#. ..#.. .#.#. #...# #...#",
    "##### ....# ...#. ..#.. .#... #.... #####",
)


def render(composition: Composition, rng: np.random.Generator) -> np.ndarray:
    """Draw a composition, uint8 [128, 128, 3]: jittered positions, sizes and colours, and noise."""
    canvas = np.empty((IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.int16)
    canvas[:] = rng.integers(205, 246, size=3)
    for letter, cell in composition.sign:
        tile = _tile(canvas, cell)
        tile[:] = _SIGN_RGB
        down, right = rng.integers(0, 2, size=2)
        tile[1 + down : 15 + down, 3 + right : 13 + right][_LETTER_MASKS[letter]] = 235
    for thing in composition.things:
        masks = _SHAPE_MASKS[thing.shape]
        mask = masks[rng.integers(len(masks))]
        color = _RGB[thing.color] + rng.integers(-15, 16, size=3)
        _tile(canvas, thing.cell)[mask] = color
    canvas += rng.integers(-10, 11, size=canvas.shape, dtype=np.int16)
    return canvas.clip(0, 255).astype(np.uint8)


def _tile(canvas: np.ndarray, cell: int) -> np.ndarray:
    row, column = divmod(cell, GRID)
    return canvas[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]


def _letter_masks() -> np.ndarray:
    """bool [10, 14, 10]: the glyphs, each dot two pixels wide and high."""
    dots = [[[dot == "#" for dot in row] for row in glyph.split()] for glyph in _GLYPHS]
    return np.array(dots).repeat(2, axis=1).repeat(2, axis=2)


def _shape_masks() -> list[np.ndarray]:
    """For each shape bool [18, 16, 16]: two sizes, shifted by up to a pixel either way."""
    masks = []
    for shape in SHAPES:
        drawn = []
        for size in (10, 12):
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    picture = Image.new("1", (CELL, CELL))
                    _draw(ImageDraw.Draw(picture), shape, 8 + right, 8 + down, size // 2)
                    drawn.append(np.asarray(picture))
        masks.append(np.stack(drawn))
    return masks


def _draw(draw: ImageDraw.ImageDraw, shape: str, x: int, y: int, half: int) -> None:
    left, top, right, bottom = x - half, y - half, x + half - 1, y + half - 1
    if shape == "circle":
        draw.ellipse((left, top, right, bottom), fill=1)
    elif shape == "square":
        draw.rectangle((left, top, right, bottom), fill=1)
    elif shape == "triangle":
        draw.polygon(((x - 1, top), (x, top), (right, bottom), (left, bottom)), fill=1)
    elif shape == "diamond":
        draw.polygon(((x, top), (right, y), (x, bottom), (left, y)), fill=1)
    else:
        draw.rectangle((left, y - 2, right, y + 1), fill=1)
        draw.rectangle((x - 2, top, x + 1, bottom), fill=1)


_LETTER_MASKS = _letter_masks()
_SHAPE_MASKS = _shape_masks()
