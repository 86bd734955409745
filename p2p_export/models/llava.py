"""LLaVA-1.5: CLIP patches through a two-layer projector, one placeholder id per patch."""

from __future__ import annotations

from p2p_export.models.family import Family

LLAVA = Family(
    architecture="llava",
    position_scheme="sequential",
    visual_token_ids=lambda config: (config.image_token_id,),
    vision="clip-projector",
)
