"""Qwen2.5-VL's vision tower and merger, for any number of images of any size.

The host lists which patches attend to one another (`models.vision.qwen2_5_vl_indices`): frames in
the full layers, windows in the others. A layer gathers its rows group by group, attends within
each group, and gathers them back, so the graph has no loop and windows cost what windows should.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from p2p_export.errors import InputError
from p2p_export.graphs.attention_mask import MASKED
from p2p_export.graphs.decoder_module import RMSNorm
from p2p_export.graphs.vision_tower import Activation, VisionTower, attend, matching_weights
from p2p_export.models.vision import VisionInfo

EPS = 1e-6


class Groups:
    """Patches that attend to one another: rows [groups, longest], -1 = padding; slots [patches]."""

    def __init__(self, rows: Tensor, slots: Tensor) -> None:
        self.rows = rows.clamp(min=0)
        self.slots = slots
        masked = torch.full((), MASKED, dtype=torch.float32, device=rows.device)
        padding = torch.where(rows >= 0, torch.zeros_like(masked), masked)
        self.mask = padding[:, None, None, :]

    def gather(self, qkv: Tensor) -> Tensor:
        """[patches, 3, heads, head_dim] -> [3, groups, heads, longest, head_dim]"""
        rows = nn.functional.embedding(self.rows, qkv.flatten(1))
        return rows.reshape(*self.rows.shape, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)

    def scatter(self, grouped: Tensor) -> Tensor:
        """[groups, heads, longest, head_dim] -> [patches, heads*head_dim]"""
        rows = grouped.transpose(1, 2).flatten(2).flatten(0, 1)
        return nn.functional.embedding(self.slots, rows)


class Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, groups: Groups) -> Tensor:
        qkv = self.qkv(hidden).unflatten(-1, (3, self.heads, -1))
        rotated = _rotate(qkv[:, :2], cos, sin)
        query, key, value = groups.gather(torch.cat((rotated, qkv[:, 2:]), dim=1)).unbind(0)
        mixed: Tensor = self.proj(groups.scatter(attend(query, key, value, groups.mask)))
        return mixed


class MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = nn.Linear(size, inner), nn.Linear(size, inner)
        self.activation = Activation(config.hidden_act)
        self.down_proj = nn.Linear(inner, size)

    def forward(self, normed: Tensor) -> Tensor:
        gated = self.activation(self.gate_proj(normed)) * self.up_proj(normed)
        hidden: Tensor = self.down_proj(gated)
        return hidden


class Block(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.hidden_size, EPS)
        self.attn = Attention(config)
        self.norm2 = RMSNorm(config.hidden_size, EPS)
        self.mlp = MLP(config)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, groups: Groups) -> Tensor:
        hidden = hidden + self.attn(self.norm1(hidden), cos, sin, groups)
        added: Tensor = hidden + self.mlp(self.norm2(hidden))
        return added


class Merger(nn.Module):
    """A block of patches, normed and laid side by side, becomes one row of the text model."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.block = config.spatial_merge_size**2
        size = config.hidden_size * self.block
        self.ln_q = RMSNorm(config.hidden_size, EPS)
        self.mlp = nn.Sequential(
            nn.Linear(size, size), nn.GELU(), nn.Linear(size, config.out_hidden_size)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        merged: Tensor = self.mlp(self.ln_q(hidden).unflatten(0, (-1, self.block)).flatten(1))
        return merged


class Qwen2_5_VLVision(nn.Module):  # noqa: N801
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.patch_embed = nn.Linear(_patch_values(config), config.hidden_size, bias=False)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.merger = Merger(config)
        self.full_layers = frozenset(config.fullatt_block_indexes)
        head_dim = config.hidden_size // config.num_heads
        self.register_buffer("inv_freq", torch.empty(head_dim // 4))

    def forward(
        self,
        pixel_values: Tensor,
        rotary_position_ids: Tensor,
        frame_rows: Tensor,
        frame_slots: Tensor,
        window_rows: Tensor | None = None,
        window_slots: Tensor | None = None,
    ) -> Tensor:
        hidden = self.patch_embed(pixel_values.to(self.patch_embed.weight.dtype))
        angles = rotary_position_ids.float().unsqueeze(-1) * self.get_buffer("inv_freq")
        angles = angles.flatten(1).repeat(1, 2)[:, None, None]
        cos, sin = angles.cos(), angles.sin()
        frames = Groups(frame_rows, frame_slots)
        windows = frames
        if window_rows is not None and window_slots is not None:
            windows = Groups(window_rows, window_slots)
        for i, block in enumerate(self.blocks):
            hidden = block(hidden, cos, sin, frames if i in self.full_layers else windows)
        features: Tensor = self.merger(hidden)
        return features


def build(model: Any, dtype: torch.dtype) -> VisionTower:
    """The tower of a Qwen2.5-VL model; window inputs only where a layer is windowed."""
    config = model.config.vision_config
    visual = model.get_submodule("model.visual")
    windowed = not set(range(config.depth)) <= set(config.fullatt_block_indexes)
    merge = config.spatial_merge_size
    window_blocks = config.window_size // merge // config.patch_size if windowed else 0
    if windowed and window_blocks < 1:
        raise InputError(
            f"window_size {config.window_size} of the vision part holds no block of "
            f"{merge * config.patch_size} pixels; check its config"
        )
    with torch.device("meta"):
        module = Qwen2_5_VLVision(config).to(dtype)
        module.inv_freq = torch.empty(module.get_buffer("inv_freq").shape)
        example, dynamic_shapes = _example(config, windowed=windowed)
    found = dict(visual.state_dict())
    found["patch_embed.weight"] = found["patch_embed.proj.weight"]
    return VisionTower(
        module=module,
        info=VisionInfo(
            kind="qwen2_5_vl",
            inputs=(
                "pixel_values",
                "rotary_position_ids",
                "frame_rows",
                "frame_slots",
                *(("window_rows", "window_slots") if windowed else ()),
            ),
            spatial_merge_size=merge,
            window_blocks=window_blocks,
        ),
        example=example,
        dynamic_shapes=dynamic_shapes,
        weights=matching_weights(module, found),
        constants={"inv_freq": visual.rotary_pos_emb.inv_freq},
    )


def _example(config: Any, *, windowed: bool) -> tuple[Any, Any]:
    """Two frames, three windows; all sizes differ, so that none is tied to another by chance."""
    block = config.spatial_merge_size**2
    patches = 6 * block
    dim = torch.export.Dim
    rows = {0: block * dim("merged_blocks")}
    example = [
        torch.empty(patches, _patch_values(config)),
        torch.empty(patches, 2, dtype=torch.int64),
        torch.empty(2, 4 * block, dtype=torch.int64),
        torch.empty(patches, dtype=torch.int64),
    ]
    shapes: list[dict[int, Any]] = [
        rows,
        rows,
        {0: dim("frames"), 1: dim("longest_frame")},
        rows,
    ]
    if windowed:
        example += [
            torch.empty(3, 3 * block, dtype=torch.int64),
            torch.empty(patches, dtype=torch.int64),
        ]
        shapes += [{0: dim("windows"), 1: dim("longest_window")}, rows]
    return tuple(example), tuple(shapes)


def _patch_values(config: Any) -> int:
    return int(config.in_channels * config.temporal_patch_size * config.patch_size**2)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on [patches, 2, heads, head_dim], in float32."""
    wide = heads.float()
    half = wide.shape[-1] // 2
    turned = torch.cat((-wide[..., half:], wide[..., :half]), dim=-1)
    return (wide * cos + turned * sin).to(heads.dtype)
