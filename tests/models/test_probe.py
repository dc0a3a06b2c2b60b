"""What is proved of a model when it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from rlhf.errors import ModelError
from rlhf.models.config import TinyModelConfig
from rlhf.models.loading import load_policy
from rlhf.models.probe import check_model
from rlhf.models.scalar import load_scalar
from rlhf.models.tiny import save_tiny

SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_models_that_are_trained_here_pass(architecture: Any, attention: str, dtype: str, tmp_path: Path) -> None:
    folder = str(save_tiny(TinyModelConfig(architecture=architecture, hidden_size=64), 0, tmp_path))
    check_model(load_policy(folder, attention=attention, dtype=dtype), folder)
    check_model(load_scalar(folder, attention=attention, dtype=dtype, fresh_head=True), folder)


def test_a_head_that_scales_its_logits_is_refused() -> None:
    scaled = GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=8.0, attn_implementation="sdpa"))
    with torch.no_grad():
        scaled.get_output_embeddings().weight.mul_(20)
    with pytest.raises(ModelError, match=r"model\.path=granite: logits of the head alone are off by"):
        check_model(scaled, "granite")


def test_a_model_whose_tokens_see_their_neighbours_in_the_row_is_refused() -> None:
    model: PreTrainedModel = LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="sdpa"))
    mixing = model.model.layers[0]
    real = mixing.forward

    def carrying(hidden: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        """A state that runs through the whole row, as a recurrent layer's does."""
        return real(hidden + hidden.cumsum(1), *arguments, **keywords)

    mixing.forward = carrying
    with pytest.raises(ModelError, match=r"of packed sequences are off by"):
        check_model(model, "recurrent")
