"""The start model: about 10 M parameters, random."""

from __future__ import annotations

from pathlib import Path

from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import byte_tokenizer, tiny_model

SHAPE = TinyModelConfig(
    architecture="qwen2",
    hidden_size=384,
    intermediate_size=1152,
    layers=6,
    heads=6,
    kv_heads=2,
    max_position_embeddings=288,
)


def save_start_model(folder: Path) -> int:
    """Write the model and its tokenizer as a Hugging Face folder; returns the number of parameters."""
    tokenizer = byte_tokenizer()
    model = tiny_model(SHAPE, tokenizer, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())
