"""A model of Qwen2.5-0.5B's shape with random weights, made here."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlhf.models.tiny import byte_tokenizer

VOCABULARY = 151_936
PARAMETERS = 494_032_768
CONTEXT_TOKENS = 512


def save_model(folder: Path, dtype: str) -> None:
    """Write the model folder. Smaller weights than transformers' own would make every log-prob alike."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
