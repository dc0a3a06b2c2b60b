"""The models of the measurement, with random weights. The planner's constants were read off the first three; the
others differ in family, width, depth, vocabulary and head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One model and the tokens of its micro-batches, few enough for two cores; `tied`: its head is its embedding."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    tokens: int
    family: str = "qwen2"
    tied: bool = True


MODELS = {
    "10M": Measured(hidden=320, intermediate=960, layers=6, heads=5, kv_heads=1, vocabulary=8192, tokens=2048),
    "75M": Measured(hidden=640, intermediate=1920, layers=10, heads=10, kv_heads=2, vocabulary=32768, tokens=1024),
    "300M": Measured(hidden=1024, intermediate=3584, layers=20, heads=16, kv_heads=4, vocabulary=32768, tokens=256),
    "120M-llama": Measured(hidden=768, intermediate=2304, layers=12, heads=12, kv_heads=4, vocabulary=24576, tokens=512,
                           family="llama", tied=False),
    "75M-qwen3": Measured(hidden=512, intermediate=1536, layers=14, heads=8, kv_heads=2, vocabulary=65536, tokens=1536,
                          family="qwen3"),
}  # fmt: skip


def save_measured(shape: Measured, folder: Path) -> int:
    """Write the model and a tokenizer as a Hugging Face folder; returns the number of parameters."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from rlhf.models.tiny import byte_tokenizer

    torch.manual_seed(0)
    values = {
        "model_type": shape.family,
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": shape.tied,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values))  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())
