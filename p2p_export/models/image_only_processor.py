"""Processors that also take video, where torchvision is missing.

transformers' video processors need torchvision, and a processor that has one cannot be built
without it, images or not. We read images alone, so the class is narrowed to what images need.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


def image_only(folder: Path) -> Any:
    """The processor class that `folder` names, less its video part; None if that is no obstacle."""
    if importlib.util.find_spec("torchvision") is not None:
        return None
    import transformers

    processor_class = getattr(transformers, _class_name(folder) or "", None)
    get_attributes = getattr(processor_class, "get_attributes", None)
    if get_attributes is None or "video_processor" not in get_attributes():
        return None
    return without_video(processor_class)


def without_video(processor_class: Any) -> Any:
    """A subclass of the same name that neither asks for a video processor nor saves one."""
    kept = [name for name in processor_class.get_attributes() if name != "video_processor"]
    return type(
        processor_class.__name__,
        (processor_class,),
        {"get_attributes": classmethod(lambda cls: list(kept)), "__module__": __name__},
    )


def _class_name(folder: Path) -> str | None:
    for file in PROCESSOR_FILES:
        try:
            config = json.loads((folder / file).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(config, dict) and isinstance(config.get("processor_class"), str):
            return str(config["processor_class"])
    return None
