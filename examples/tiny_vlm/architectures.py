"""The two built-in architectures: tokenizer, configuration, initial weights."""

from __future__ import annotations

import torch
from easy_vqa import get_answers, get_train_questions
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from p2p_export.calibration.tiny_vqa_composition import GRID, IMAGE_SIZE
from p2p_export.calibration.tiny_vqa_wording import VOCABULARY, words

NAMES = ("tiny-llava", "tiny-qwen2.5-vl")
HIDDEN_SIZE = 128
NUM_VISUAL_TOKENS = GRID * GRID

_LLAVA_SPECIALS = ["<pad>", "<s>", "</s>", "<unk>", "<image>"]
_QWEN_SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>",
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
_ROLE_WORDS = ("user", "assistant", ":")

_LLAVA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}user : {% else %}assistant : {% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for item in message['content'] %}{% if item['type'] == 'image' %}<image> "
    "{% elif item['type'] == 'text' %}{{ item['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %} {% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)
_QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }} "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for item in message['content'] %}{% if item['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif item['type'] == 'text' %}{{ item['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


def build_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Word-level tokenizer over tiny-vqa's and easy-vqa's words; lower-cases what it reads."""
    easy = {word for text in get_train_questions()[0] for word in words(text)} | {*get_answers()}
    specials = _LLAVA_SPECIALS if name == "tiny-llava" else _QWEN_SPECIALS
    listed = [*specials, *_ROLE_WORDS, *sorted({*VOCABULARY} | easy)]
    backend = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(listed)}, unk_token="<unk>")
    )
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)
    if name == "tiny-llava":
        return PreTrainedTokenizerFast(
            tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
            unk_token="<unk>", extra_special_tokens={"image_token": "<image>"},
            padding_side="left", model_max_length=512, chat_template=_LLAVA_TEMPLATE,
        )  # fmt: skip
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<|endoftext|>", eos_token="<|im_end|>",
        unk_token="<unk>", padding_side="left", model_max_length=512,
        extra_special_tokens={
            "image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
            "vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>",
            "im_start_token": "<|im_start|>",
        },
        chat_template=_QWEN_TEMPLATE,
    )  # fmt: skip


def build_model(name: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """The model with its initial weights; seed torch before."""
    config = (_llava_config if name == "tiny-llava" else _qwen_config)(tokenizer)
    config._attn_implementation = "sdpa"
    model: PreTrainedModel
    if name == "tiny-llava":
        model = LlavaForConditionalGeneration(config)
    else:
        model = Qwen2_5_VLForConditionalGeneration(config)
    _initialize(model)
    return model


def _llava_config(tokenizer: PreTrainedTokenizerFast) -> LlavaConfig:
    return LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=128, intermediate_size=320, num_hidden_layers=3, num_attention_heads=4,
            image_size=IMAGE_SIZE, patch_size=16, projection_dim=128,
        ),
        text_config=LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=HIDDEN_SIZE, intermediate_size=352,
            num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=4,
            max_position_embeddings=512, bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=NUM_VISUAL_TOKENS, vision_feature_layer=-1,
        vision_feature_select_strategy="default", tie_word_embeddings=False,
    )  # fmt: skip


def _qwen_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLConfig:
    token = tokenizer.convert_tokens_to_ids
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer), "hidden_size": HIDDEN_SIZE, "intermediate_size": 352,
            "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 512, "max_window_layers": 8, "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6],
            },
        },
        vision_config={
            "depth": 2, "hidden_size": 96, "intermediate_size": 256, "num_heads": 4,
            "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2,
            "window_size": 128, "out_hidden_size": HIDDEN_SIZE, "fullatt_block_indexes": [0, 1],
        },
        image_token_id=token("<|image_pad|>"), video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"), tie_word_embeddings=False,
    )  # fmt: skip


@torch.no_grad()
def _initialize(model: PreTrainedModel) -> None:
    """Make attention look for like tokens and copy them from the start.

    Queries start near the keys, the output projection near the transpose of the values, and the
    head near the embedding; learning then starts from "find what the question names".
    """
    decoder = model.model.language_model
    decoder.embed_tokens.weight.normal_(std=0.3)
    model.lm_head.weight.copy_(0.3 * decoder.embed_tokens.weight)
    for module in model.modules():
        layered = isinstance(module, torch.nn.Linear | torch.nn.Conv2d | torch.nn.Conv3d)
        if layered and module is not model.lm_head:
            module.weight.normal_(std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                module.bias.zero_()
    heads = decoder.config.num_attention_heads
    groups = heads // decoder.config.num_key_value_heads
    for layer in decoder.layers:
        attention = layer.self_attn
        keys = attention.k_proj.weight.unflatten(0, (heads // groups, -1))
        values = attention.v_proj.weight.unflatten(0, (heads // groups, -1))
        queries = keys.repeat_interleave(groups, dim=0).flatten(0, 1)
        attention.q_proj.weight.mul_(0.4).add_(0.9 * queries)
        outputs = values.repeat_interleave(groups, dim=0).flatten(0, 1).T
        attention.o_proj.weight.mul_(0.1).add_(0.3 * outputs)
        layer.mlp.down_proj.weight.mul_(0.2)
