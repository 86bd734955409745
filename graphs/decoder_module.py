"""The decoder we export: a small module over a checkpoint's weights, written for its graph.

It computes what transformers' text model computes (RMSNorm, RoPE or MRoPE, grouped-query attention
over a KV cache, gated SiLU MLP) and nothing else. Rows nobody reads later are not computed: the
last layer runs its queries, output projection and MLP on the last position only, the one whose
logits are asked (DESIGN §2). Norms, RoPE and softmax run in float32 whatever the weights' dtype.

Parameters are named as below `language_model` in the checkpoint (plus `lm_head`) and live on the
meta device: exporting needs their shapes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from p2p_export.graphs.attention_mask import MASKED
from p2p_export.models.decoder_spec import DecoderSpec


@dataclass(frozen=True)
class Biases:
    """Which linears have a bias, as found in the checkpoint's modules."""

    query_key_value: bool
    output: bool
    mlp: bool


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        normed = wide / torch.sqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(hidden.dtype)


class RotaryEmbedding(nn.Module):
    """position ids -> cos, sin, each [B,S,head_dim] float32."""

    def __init__(self, spec: DecoderSpec, attention_scaling: float) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.empty(spec.head_dim // 2, dtype=torch.float32))
        self.sections = spec.mrope_section
        self.attention_scaling = attention_scaling

    def forward(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        inv_freq = self.get_buffer("inv_freq")
        positions = position_ids.float().unsqueeze(-1)
        if self.sections:
            parts, start = [], 0
            for i, width in enumerate(self.sections):
                parts.append(positions[i % 3] * inv_freq[start : start + width])
                start += width
            angles = torch.cat(parts, dim=-1)
        else:
            angles = positions * inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        if self.attention_scaling != 1.0:
            cos, sin = cos * self.attention_scaling, sin * self.attention_scaling
        return cos, sin


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on [B,H,S,head_dim], in float32."""
    wide = heads.float()
    half = wide.shape[-1] // 2
    turned = torch.cat((-wide[..., half:], wide[..., :half]), dim=-1)
    return (wide * cos.unsqueeze(1) + turned * sin.unsqueeze(1)).to(heads.dtype)


class Attention(nn.Module):
    def __init__(self, spec: DecoderSpec, biases: Biases) -> None:
        super().__init__()
        self.spec = spec
        hidden, bias = spec.hidden_size, biases.query_key_value
        self.q_proj = nn.Linear(hidden, spec.query_size, bias=bias)
        self.k_proj = nn.Linear(hidden, spec.key_value_size, bias=bias)
        self.v_proj = nn.Linear(hidden, spec.key_value_size, bias=bias)
        self.o_proj = nn.Linear(spec.query_size, hidden, bias=biases.output)

    def forward(
        self,
        normed: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        past: tuple[Tensor, Tensor],
        *,
        last_row_only: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        spec = self.spec
        key = rotate(self._heads(self.k_proj(normed)), cos, sin)
        value = self._heads(self.v_proj(normed))
        key = torch.cat((past[0], key), dim=2)
        value = torch.cat((past[1], value), dim=2)
        if last_row_only:
            normed, cos, sin = last_row(normed), last_row(cos), last_row(sin)
            mask = mask[:, :, -1].unsqueeze(2)
        query = rotate(self._heads(self.q_proj(normed)), cos, sin) * spec.head_dim**-0.5
        mixed = self._attend(query, key, value, mask)
        return self.o_proj(mixed), key, value

    def _heads(self, rows: Tensor) -> Tensor:
        """[B,S,heads*head_dim] -> [B,heads,S,head_dim]"""
        return rows.reshape(*rows.shape[:2], -1, self.spec.head_dim).transpose(1, 2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """The queries of one key/value group share a product, so K and V are never repeated."""
        spec = self.spec
        kv_heads = spec.num_key_value_heads
        groups = spec.num_attention_heads // kv_heads
        batch, _, rows, size = query.shape
        query = query.reshape(batch, kv_heads, groups * rows, size)
        scores = (query @ key.transpose(2, 3)).float()
        if groups > 1:
            scores = scores.reshape(batch, kv_heads, groups, rows, -1) + mask.unsqueeze(2)
        else:
            scores = scores + mask
        weights = torch.softmax(scores, dim=-1).to(value.dtype)
        if groups > 1:
            weights = weights.flatten(2, 3)
        mixed = (weights @ value).reshape(batch, spec.num_attention_heads, rows, size)
        return mixed.transpose(1, 2).flatten(2)


class MLP(nn.Module):
    def __init__(self, spec: DecoderSpec, biases: Biases) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=biases.mlp)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=biases.mlp)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=biases.mlp)

    def forward(self, normed: Tensor) -> Tensor:
        gate = self.gate_proj(normed)
        hidden: Tensor = self.down_proj(gate * torch.sigmoid(gate) * self.up_proj(normed))
        return hidden


class DecoderLayer(nn.Module):
    def __init__(self, spec: DecoderSpec, biases: Biases, *, is_last: bool) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.self_attn = Attention(spec, biases)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.mlp = MLP(spec, biases)
        self.is_last = is_last

    def forward(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        mixed, key, value = self.self_attn(
            self.input_layernorm(hidden), cos, sin, mask, past, last_row_only=self.is_last
        )
        if self.is_last:
            hidden = last_row(hidden)
        hidden = hidden + mixed
        return hidden + self.mlp(self.post_attention_layernorm(hidden)), key, value


class Decoder(nn.Module):
    """The whole text model with its head; `forward` has the bindings of `decoder.onnx`.

    inputs_embeds [B,S,D], attention_mask [B,P+S] int64, position_ids [B,S] or [3,B,S] int64,
    then key and value of each layer, [B,Hkv,P,head_dim]. Returns logits [B,vocab] float32 of the
    last position, then each layer's present key and value.
    """

    def __init__(self, spec: DecoderSpec, biases: Biases, attention_scaling: float) -> None:
        super().__init__()
        last = spec.num_hidden_layers - 1
        self.rotary_emb = RotaryEmbedding(spec, attention_scaling)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, biases, is_last=i == last) for i in range(spec.num_hidden_layers)
        )
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.lm_head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)

    def forward(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        past_key_values: list[Tensor],
    ) -> tuple[Tensor, ...]:
        cos, sin = self.rotary_emb(position_ids)
        mask = causal_mask(attention_mask, past_key_values[0].shape[2], inputs_embeds.shape[1])
        hidden = inputs_embeds
        present: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            past = (past_key_values[2 * i], past_key_values[2 * i + 1])
            hidden, key, value = layer(hidden, cos, sin, mask, past)
            present += [key, value]
        logits = self.lm_head(self.norm(hidden)).float()
        return (logits.squeeze(1), *present)


def causal_mask(attention_mask: Tensor, past: int, rows: int) -> Tensor:
    """[B,1,rows,past+rows] float32 to add to scores; order in the sequence decides."""
    torch._check(attention_mask.shape[1] == past + rows)  # type: ignore[no-untyped-call]
    device = attention_mask.device
    keys, queries = torch.arange(past + rows, device=device), torch.arange(rows, device=device)
    visible = keys[None, :] <= (queries + past)[:, None]
    visible = visible[None, None] & (attention_mask[:, None, None, :] != 0)
    masked = torch.full((), MASKED, dtype=torch.float32, device=device)
    return torch.where(visible, torch.zeros_like(masked), masked)


def last_row(rows: Tensor) -> Tensor:
    """[B,S,C] -> [B,1,C]"""
    return rows[:, -1].unsqueeze(1)
