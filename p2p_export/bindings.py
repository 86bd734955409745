"""Inputs and outputs of the decoder graphs (DESIGN §4): their names, and what each is for."""

from __future__ import annotations

import re

INPUTS_EMBEDS = "inputs_embeds"
ATTENTION_MASK = "attention_mask"
POSITION_IDS = "position_ids"
TEXT_INDEX = "text_index"
VISUAL_INDEX = "visual_index"
VISUAL_START = "visual_start"
VISUAL_END = "visual_end"
TEXT_ATTENTION_MASK = "text_attention_mask"
VISUAL_POSITION_IDS = "visual_position_ids"
VISUAL_SEQUENCE_INDEX = "visual_sequence_index"
LOGITS = "logits"

_CACHE = re.compile(r"^(past_key_values|present)\.(\d+)\.(key|value)$")


def past_name(layer: int, part: str) -> str:
    """Input that brings layer `layer`'s cached `key` or `value`."""
    return f"past_key_values.{layer}.{part}"


def present_name(layer: int, part: str) -> str:
    """Output that gives layer `layer`'s `key` or `value` back, this call's included."""
    return f"present.{layer}.{part}"


def role_of(name: str) -> str:
    """What a binding is for, as the manifest says it; a name we do not know is its own role."""
    cache = _CACHE.match(name)
    if cache is None:
        return name
    return f"{'past' if cache[1] == 'past_key_values' else 'present'}_{cache[3]}"
