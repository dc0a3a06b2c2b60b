"""Shapes and activations are those of the real modules: the same ones, run for real on a CPU, hold as much."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.learner.clock import peak_bytes
from rlhf.models.config import TinyModelConfig
from rlhf.models.policy import PolicyModel
from rlhf.models.tiny import ARCHITECTURES, byte_tokenizer, tiny_model
from rlhf.recipe.model_configs import tiny_values
from rlhf.recipe.planning.meta_model import activations_of, packed_positions, shape_of
from rlhf.recipe.planning.shape import some_recomputed

TOKENS, LENGTHS = 1024, (32, 96, 1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_made_model_has_the_shape_that_is_planned(architecture: str) -> None:
    config = TinyModelConfig(architecture=architecture)  # type: ignore[arg-type]
    model = tiny_model(config, byte_tokenizer(sees=config.sees), seed=0)
    shape = shape_of("made", tiny_values(config))
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (shape.layers, shape.kv_heads, shape.head_size) == (2, 1, 64)
    assert shape.cache_elements() == 2 * 2 * 1 * 64
    assert shape.tied


@pytest.mark.parametrize("every", [0, 1, 2])
def test_fake_passes_hold_what_real_ones_hold(every: int) -> None:
    """Where all layers are computed again, none, or every second."""
    values = {
        "model_type": "qwen2", "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 768,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    }  # fmt: skip
    none, all = (
        activations_of(values, dtype="float32", checkpointing=one, attention="auto", lengths=LENGTHS, tokens=TOKENS)
        for one in (False, True)
    )
    planned = (none, all, some_recomputed(none, all, 0.5))[every].peak(TOKENS)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values)).eval()
    if every:
        from rlhf.models.loading import ready_to_train

        ready_to_train(model, gradient_checkpointing=every)
    policy = PolicyModel(model)
    positions = packed_positions(TOKENS, LENGTHS)
    ids, places = torch.zeros_like(positions), torch.arange(1, TOKENS)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(forget)

    def both() -> None:
        policy(ids, positions, places - 1, places, 1.0)[0].sum().backward()

    both()
    assert planned == pytest.approx(peak_bytes(both), rel=0.1)


@pytest.mark.parametrize("kind", ["bloom", "mamba"])
def test_models_whose_rows_are_one_sequence_are_planned(kind: str) -> None:
    """They name no context, and one of them no attention heads."""
    values = {"model_type": kind, "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2}
    planned = activations_of(
        values, dtype="float32", checkpointing=False, attention="auto", lengths=(2, 6, 1), tokens=16
    )
    assert planned.peak(16) > 0
    assert shape_of(kind, values).context_tokens == 2048


def forget(parameter: Tensor) -> None:
    parameter.grad = None
