"""The models of the measurement: random weights, three sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One model and the tokens of its micro-batches, few enough for two CPU cores."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    tokens: int


MODELS = {
    "10M": Measured(hidden=320, intermediate=960, layers=6, heads=5, kv_heads=1, vocabulary=8192, tokens=2048),
    "75M": Measured(hidden=640, intermediate=1920, layers=10, heads=10, kv_heads=2, vocabulary=32768, tokens=1024),
    "300M": Measured(hidden=1024, intermediate=3584, layers=20, heads=16, kv_heads=4, vocabulary=32768, tokens=256),
}


def save_measured(shape: Measured, folder: Path) -> int:
    """Write the model and a tokenizer as a Hugging Face folder; returns the number of parameters."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from rlhf.models.tiny import byte_tokenizer

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(  # type: ignore[no-untyped-call]
        Qwen2Config(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
        )
    )
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())
