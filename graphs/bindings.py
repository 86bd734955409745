"""Names of the decoder graph's inputs and outputs (DESIGN §4), in one place."""

from __future__ import annotations

INPUTS_EMBEDS = "inputs_embeds"
ATTENTION_MASK = "attention_mask"
POSITION_IDS = "position_ids"
TEXT_INDEX = "text_index"
VISUAL_INDEX = "visual_index"
LOGITS = "logits"


def past_name(layer: int, part: str) -> str:
    """Input that brings layer `layer`'s cached `key` or `value`."""
    return f"past_key_values.{layer}.{part}"


def present_name(layer: int, part: str) -> str:
    """Output that gives layer `layer`'s `key` or `value` back, this call's included."""
    return f"present.{layer}.{part}"
