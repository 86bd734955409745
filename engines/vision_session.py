"""The vision part of a bundle, running."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from p2p_export.models.vision import VisionInfo, vision_inputs

if TYPE_CHECKING:
    from PIL.Image import Image

Array = npt.NDArray[Any]


class VisionSession:
    """`vision.onnx` in ONNX Runtime, with the image processor before it."""

    def __init__(
        self,
        graph: Path,
        info: VisionInfo,
        processor: Callable[[Sequence[Image]], dict[str, Array]],
    ) -> None:
        import onnxruntime

        self.info = info
        self.process = processor
        self._session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])

    def features(self, processed: Mapping[str, Array]) -> Array:
        """Image rows [rows, D] of all images, in their order."""
        features: Array = self._session.run(None, vision_inputs(self.info, processed))[0]
        return features.reshape(-1, features.shape[-1])
