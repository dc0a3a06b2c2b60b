"""Tiny random models of other families: what they do about masks, windows and positions is transformers' own."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

WINDOW = 12
SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
MADE: dict[str, tuple[type, type, dict[str, Any]]] = {
    "falcon": (FalconConfig, FalconForCausalLM, {"alibi": False, "new_decoder_architecture": False}),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, {"head_dim": 32, **MIXED}),
    "gpt_oss": (
        GptOssConfig,
        GptOssForCausalLM,
        {"head_dim": 32, "num_local_experts": 2, "num_experts_per_tok": 2, **MIXED},
    ),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": WINDOW}),
    "phi3": (Phi3Config, Phi3ForCausalLM, {"sliding_window": WINDOW}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"use_sliding_window": True, "max_window_layers": 1, **MIXED}),
}
CASES = [
    (family, attention)
    for family in MADE
    for attention in ("sdpa", "eager")
    if (family, attention) != ("gpt_oss", "sdpa")  # transformers has none for it
]


def family_model(family: str, attention: str) -> PreTrainedModel:
    """Its logits are spread like a trained model's: a token that is seen or not makes nats of a difference."""
    config, kind, settings = MADE[family]
    torch.manual_seed(0)
    model: PreTrainedModel = kind(config(**SHAPE | settings, attn_implementation=attention))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "embed" not in name and "lm_head" not in name:
                weight.normal_(0, 1.0 / weight.shape[-1] ** 0.5)
        model.get_output_embeddings().weight.normal_(0, 0.5)  # type: ignore[no-untyped-call]
    return model.train()
