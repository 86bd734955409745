"""What a model family is: where its decoder's parts are and how its visual rows are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from p2p_export.models.decoder_spec import DecoderSpec
from p2p_export.models.positions import (
    PositionScheme,
    mrope_position_ids,
    sequential_position_ids,
)
from p2p_export.proxies import Site

if TYPE_CHECKING:
    from torch import nn

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Module paths below one decoder layer; every family we know keeps Llama's.
LLAMA_SITES: Mapping[Site, str] = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


@dataclass(frozen=True)
class Family:
    """One architecture (`config.model_type`), described; a new family is a new file here.

    `visual_token_ids(config)` names the placeholder ids whose rows are visual.
    `newline_rows(input_ids, config, inputs)` marks image_newline rows among them, for families
    that have such rows; `inputs` is what the processor returned.
    """

    architecture: str
    position_scheme: PositionScheme
    visual_token_ids: Callable[[Any], tuple[int, ...]]
    # What makes vision.onnx for it; None when only the decoder can be exported yet.
    vision: Literal["clip-projector", "qwen2_5_vl"] | None
    text_model: str = "model.language_model"
    head: str = "lm_head"
    layers: str = "layers"
    sites: Mapping[Site, str] = field(default_factory=lambda: LLAMA_SITES)
    newline_rows: Callable[[IntArray, Any, Mapping[str, Any]], BoolArray] | None = None

    def decoder_spec(self, config: Any) -> DecoderSpec:
        """The decoder's shape from a transformers config (the composite one)."""
        text = config.get_text_config()
        heads = text.num_attention_heads
        rope = getattr(text, "rope_parameters", None) or {}
        mrope = self.position_scheme == "mrope"
        return DecoderSpec(
            num_hidden_layers=text.num_hidden_layers,
            hidden_size=text.hidden_size,
            intermediate_size=text.intermediate_size,
            num_attention_heads=heads,
            num_key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
            vocab_size=text.vocab_size,
            rms_norm_eps=text.rms_norm_eps,
            position_axes=3 if mrope else 1,
            mrope_section=tuple(rope.get("mrope_section", ())) if mrope else (),
        )

    def decoder(self, model: nn.Module) -> nn.Module:
        """The text model: embeddings, layers, final norm, rotary_emb."""
        return model.get_submodule(self.text_model)

    def decoder_layers(self, model: nn.Module) -> list[nn.Module]:
        return list(self.decoder(model).get_submodule(self.layers).children())

    def site(self, model: nn.Module, layer: int, site: Site) -> nn.Module:
        """The linear at `site` of `layer`."""
        return model.get_submodule(f"{self.text_model}.{self.layers}.{layer}.{self.sites[site]}")

    def visual_mask(
        self,
        input_ids: IntArray,
        config: Any,
        inputs: Mapping[str, Any] | None = None,
        *,
        newline: Literal["visual", "text"] = "visual",
    ) -> BoolArray:
        """[B,S] bool: which rows carry an image (or video) embedding."""
        mask: BoolArray = np.isin(input_ids, self.visual_token_ids(config))
        if newline == "text" and self.newline_rows is not None:
            mask &= ~self.newline_rows(input_ids, config, inputs or {})
        return mask

    def position_ids(
        self,
        input_ids: IntArray,
        attention_mask: IntArray,
        config: Any,
        inputs: Mapping[str, Any],
    ) -> IntArray:
        """[B,S], or [3,B,S] with MRoPE: the ids transformers computes for these inputs.

        `inputs` is what the processor returned; MRoPE reads `image_grid_thw` from it.
        """
        if self.position_scheme == "sequential":
            return sequential_position_ids(attention_mask)
        return mrope_position_ids(
            attention_mask,
            np.isin(input_ids, self.visual_token_ids(config)),
            np.asarray(inputs["image_grid_thw"]),
            spatial_merge_size=config.vision_config.spatial_merge_size,
        )
