"""The vision part of a bundle, running."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from p2p_export.engines.onnxruntime_backend import (
    OnnxRuntimeOptions,
    run_graph,
    start_session,
)
from p2p_export.models.vision import VisionInfo, vision_inputs

if TYPE_CHECKING:
    from PIL.Image import Image

Array = npt.NDArray[Any]


class VisionSession:
    """`vision.onnx` in ONNX Runtime, with the image processor before it.

    `process` turns PIL images into what `features` takes.
    """

    def __init__(
        self,
        graph: Path,
        info: VisionInfo,
        process: Callable[[Sequence[Image]], dict[str, Array]],
        options: OnnxRuntimeOptions,
    ) -> None:
        self.info = info
        self.process = process
        self._session = start_session(graph, options)

    def features(self, processed: Mapping[str, Array]) -> Array:
        """Image rows [rows, D] of all images, in their order."""
        outputs = run_graph(self._session, vision_inputs(self.info, processed))
        features = outputs["image_features"]
        return features.reshape(-1, features.shape[-1])
