"""Model families: one small description each, and how a checkpoint is found and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2p_export.errors import InputError
from p2p_export.models.decoder_spec import DecoderSpec
from p2p_export.models.family import Family
from p2p_export.models.llava import LLAVA
from p2p_export.models.llava_next import LLAVA_NEXT
from p2p_export.models.llava_onevision import LLAVA_ONEVISION
from p2p_export.models.qwen2_5_vl import QWEN2_5_VL

__all__ = ["FAMILIES", "DecoderSpec", "Family", "family_of"]

FAMILIES: Mapping[str, Family] = {
    family.architecture: family for family in (LLAVA, LLAVA_NEXT, LLAVA_ONEVISION, QWEN2_5_VL)
}


def family_of(config: Any) -> Family:
    """The family of a transformers config; `InputError` naming those we know otherwise."""
    architecture = str(getattr(config, "model_type", None))
    if architecture not in FAMILIES:
        raise InputError(
            f"architecture {architecture!r} is not one we know; we know {', '.join(FAMILIES)}"
        )
    return FAMILIES[architecture]
