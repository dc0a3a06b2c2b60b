"""The start model: about 10 M parameters, random, and it never ends a reply before its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

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
    silence(model, tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def silence(model: Any, token_id: int) -> None:
    """Make a token impossible to sample, in the weights: neither side needs a rule that bans it.

    Channel 0 of the residual stream holds a constant that no layer writes to. All tokens read it alike, except that
    one, whose logit it pushes down by about 16 nats: more would be rounding that the canary sees.
    """
    embedding = model.get_input_embeddings().weight
    embedding[:, 0] = 0.5
    embedding[token_id, 0] = -12.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = 0
        layer.mlp.down_proj.weight[0] = 0
