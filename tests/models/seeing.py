"""Tiny models that see: a language part, and a vision tower of a few KB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from rlhf.models.tiny import byte_tokenizer

LANGUAGE: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 1024, "initializer_range": 0.05,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SLIDES = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 1, "linear_num_value_heads": 2,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
SEES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1, "num_hidden_layers": 1, "head_dim": 16}
SEES_QWEN = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "out_hidden_size": 64, "patch_size": 4,
    "num_position_embeddings": 4,
}  # fmt: skip
MADE: dict[str, dict[str, Any]] = {
    "qwen3_5": {"text_config": LINEAR, "vision_config": SEES_QWEN},
    "qwen3_vl": {
        "text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5]}},
        "vision_config": SEES_QWEN | {"deepstack_visual_indexes": [0]},
    },
    "gemma3": {
        "text_config": {"query_pre_attn_scalar": 16, **SLIDES},
        "vision_config": {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 4, **SEES},
        "mm_tokens_per_image": 4,
    },
    "gemma4": {
        "text_config": {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 320, **SLIDES},
        "vision_config": {"model_type": "gemma4_vision", "patch_size": 4, "position_embedding_size": 16, **SEES},
    },
    "mistral3": {
        "text_config": {"model_type": "mistral"},
        "vision_config": {"model_type": "pixtral", "image_size": 16, "patch_size": 4, **SEES},
    },
}  # fmt: skip
"""What a model's configuration takes beside `LANGUAGE`, by transformers' name of the model."""


def seeing(kind: str) -> PreTrainedModel:
    """A model with random weights, always the same."""
    parts = {name: dict(values) if isinstance(values, dict) else values for name, values in MADE[kind].items()}
    parts["text_config"] = LANGUAGE | parts["text_config"]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **parts)
    model: PreTrainedModel = AutoModelForImageTextToText.from_config(config)  # type: ignore[no-untyped-call]
    return model


def save_seeing(kind: str, folder: Path) -> Path:
    """The folder of a made model."""
    seeing(kind).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
