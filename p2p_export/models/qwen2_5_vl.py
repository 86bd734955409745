"""Qwen2.5-VL: grouped-query attention with q/k/v biases, MRoPE, image and video placeholders."""

from __future__ import annotations

from p2p_export.models.family import Family

QWEN2_5_VL = Family(
    architecture="qwen2_5_vl",
    position_scheme="mrope",
    visual_token_ids=lambda config: (config.image_token_id, config.video_token_id),
    vision="qwen2_5_vl",
)
