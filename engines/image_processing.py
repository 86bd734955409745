"""Images -> `pixel_values`, as transformers' PIL processors make them, with NumPy and PIL alone.

Driven by the `image_processor` settings of a bundle's processor folder; equal bit for bit to
transformers' `CLIPImageProcessorPil`, `LlavaImageProcessorPil` and `Qwen2VLImageProcessorPil`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from p2p_export.errors import BundleError, InputError

if TYPE_CHECKING:
    from PIL.Image import Image

Array = npt.NDArray[Any]
Settings = Mapping[str, Any]

BICUBIC = 3
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
# A longer and thinner image than this is refused, as transformers does.
LARGEST_ASPECT_RATIO = 200


def open_image(image: str | os.PathLike[str] | Image) -> Image:
    """A file, upright and in RGB; or a PIL image as it is. `InputError` when it cannot be read."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ModuleNotFoundError:
        raise InputError("images need the package `pillow`; `pip install pillow`") from None
    if isinstance(image, PIL.Image.Image):
        return image
    path = Path(image)
    if not path.is_file():
        raise InputError(f"no image file at {path}; check the path")
    try:
        with PIL.Image.open(path) as opened:
            return PIL.ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise InputError(
            f"the image {path} cannot be read ({type(error).__name__}); it is damaged, too large, "
            "or of a format that PIL does not know"
        ) from None


def image_processor(settings: Settings) -> Callable[[Sequence[Image]], dict[str, Array]]:
    """What turns PIL images into `pixel_values` (and `image_grid_thw`), by the settings' type."""
    kind = str(settings.get("image_processor_type"))
    known: dict[str, Callable[[Sequence[Image], Settings], dict[str, Array]]] = {
        "CLIPImageProcessor": clip_pixels,
        "LlavaImageProcessor": clip_pixels,
        "Qwen2VLImageProcessor": qwen2_vl_patches,
        "Qwen2_5_VLImageProcessor": qwen2_vl_patches,
    }
    for suffix in ("Fast", "Pil"):
        kind = kind.removesuffix(suffix)
    if kind not in known:
        raise BundleError(
            f"an image processor of type {kind!r} is not one the runtime has; "
            f"it has {', '.join(known)}"
        )
    process = known[kind]
    return lambda images: process(images, settings)


def clip_pixels(images: Sequence[Image], settings: Settings) -> dict[str, Array]:
    """CLIP's and LLaVA's: resize, crop, rescale, normalize -> `pixel_values` [images,3,H,W]."""
    pixels = []
    for image in images:
        image = _rgb(image)
        if settings.get("do_pad"):
            image = _padded_to_square(image, settings)
        if settings.get("do_resize", True):
            image = _resized(image, _clip_size(image, settings), settings)
        values: Array = np.asarray(image).transpose(2, 0, 1)
        if settings.get("do_center_crop", True):
            values = _center_crop(values, _sides(settings.get("crop_size", 224)))
        pixels.append(_normalized(values, settings))
    return {"pixel_values": np.stack(pixels)}


def qwen2_vl_patches(images: Sequence[Image], settings: Settings) -> dict[str, Array]:
    """Qwen2-VL's: `pixel_values` [patches, C*T*P*P], block by block, and `image_grid_thw`."""
    patch, merge = int(settings.get("patch_size", 14)), int(settings.get("merge_size", 2))
    frames = int(settings.get("temporal_patch_size", 2))
    patches, grids = [], []
    for image in images:
        image = _rgb(image)
        if settings.get("do_resize", True):
            least, most = _pixel_limits(settings)
            size = smart_size(image.height, image.width, patch * merge, least, most)
            image = _resized(image, size, settings)
        values = _normalized(np.asarray(image).transpose(2, 0, 1), settings)
        channels, rows, columns = len(values), image.height // patch, image.width // patch
        blocks = values.reshape(
            channels, rows // merge, merge, patch, columns // merge, merge, patch
        ).transpose(1, 4, 2, 5, 0, 3, 6)
        # A still image fills every frame of its temporal patch.
        repeated = np.repeat(blocks[:, :, :, :, :, None], frames, axis=5)
        patches.append(repeated.reshape(rows * columns, -1))
        grids.append([1, rows, columns])
    return {
        "pixel_values": np.concatenate(patches),
        "image_grid_thw": np.array(grids, dtype=np.int64),
    }


def smart_size(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """Height and width, both multiples of `factor`, with `least` to `most` pixels in all.

    The aspect ratio stays as near as that allows; the rule is Qwen2-VL's.
    """
    if max(height, width) > LARGEST_ASPECT_RATIO * min(height, width):
        raise InputError(
            f"an image of {width}x{height} pixels is too narrow; its sides may differ by a factor "
            f"of {LARGEST_ASPECT_RATIO} at most"
        )
    near = round(height / factor) * factor, round(width / factor) * factor
    if near[0] * near[1] > most:
        shrink = math.sqrt(height * width / most)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if near[0] * near[1] < least:
        grow = math.sqrt(least / (height * width))
        return (
            math.ceil(height * grow / factor) * factor,
            math.ceil(width * grow / factor) * factor,
        )
    return near


def _pixel_limits(settings: Settings) -> tuple[int, int]:
    size = settings.get("size") or {}
    least = settings.get("min_pixels") or size.get("shortest_edge") or 56 * 56
    most = settings.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280
    return int(least), int(most)


def _rgb(image: Image) -> Image:
    """RGB; what is transparent becomes white."""
    import PIL.Image

    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = PIL.Image.new("RGBA", image.size, (255, 255, 255, 255))
    return PIL.Image.alpha_composite(white, image).convert("RGB")


def _padded_to_square(image: Image, settings: Settings) -> Image:
    import PIL.Image

    side = max(image.size)
    mean = [int(255 * value) for value in settings.get("image_mean", CLIP_MEAN)]
    square = PIL.Image.new("RGB", (side, side), (mean[0], mean[1], mean[2]))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def _clip_size(image: Image, settings: Settings) -> tuple[int, int]:
    size = settings.get("size", 224)
    shortest = size if isinstance(size, int) else size.get("shortest_edge")
    if shortest is None or (isinstance(size, dict) and size.get("longest_edge")):
        return _sides(size)
    short, long = sorted(image.size)
    other = int(shortest * long / short)
    return (other, shortest) if image.width <= image.height else (shortest, other)


def _sides(size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    try:
        return int(size["height"]), int(size["width"])
    except (KeyError, TypeError):
        raise BundleError(
            f"the image processor's size {size!r} is none the runtime knows; it takes a number, "
            "`height` and `width`, or `shortest_edge`"
        ) from None


def _resized(image: Image, size: tuple[int, int], settings: Settings) -> Image:
    from PIL.Image import Resampling

    return image.resize((size[1], size[0]), Resampling(settings.get("resample", BICUBIC)))


def _center_crop(values: Array, size: tuple[int, int]) -> Array:
    """[C,H,W] -> [C, *size]; an image smaller than that gets a black margin."""
    height, width = values.shape[1:]
    tall, wide = max(size[0], height), max(size[1], width)
    canvas = np.zeros((len(values), tall, wide), dtype=values.dtype)
    above, left = math.ceil((tall - height) / 2), math.ceil((wide - width) / 2)
    canvas[:, above : above + height, left : left + width] = values
    top = (height - size[0]) // 2 + above
    start = (width - size[1]) // 2 + left
    return canvas[:, top : top + size[0], start : start + size[1]]


def _normalized(values: Array, settings: Settings) -> Array:
    """uint8 [3,H,W] -> float32."""
    if settings.get("do_rescale", True):
        factor = float(settings.get("rescale_factor", 1 / 255))
        values = (values.astype(np.float64) * factor).astype(np.float32)
    values = values.astype(np.float32)
    if settings.get("do_normalize", True):
        mean = np.array(settings.get("image_mean", CLIP_MEAN), dtype=np.float32)
        std = np.array(settings.get("image_std", CLIP_STD), dtype=np.float32)
        values = (values - mean[:, None, None]) / std[:, None, None]
    return values
