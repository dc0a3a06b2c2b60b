"""The noise of the start check shows any kind of tensor that stays behind, and is small enough for rounding."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import byte_tokenizer, tiny_model
from rlhf.weight_sync.canary import VERIFY_FACTOR
from rlhf.weight_sync.perturbation import BLOCK, add_noise

TOLERANCE = 0.1
"""Of the canary in 16 bits; in float32 it is a thousand times smaller."""
MODELS = {
    "llama": TinyModelConfig(architecture="llama", tie_word_embeddings=False),
    "qwen2": TinyModelConfig(architecture="qwen2", tie_word_embeddings=True),
    "qwen3": TinyModelConfig(architecture="qwen3", tie_word_embeddings=True),
    "deep": TinyModelConfig(architecture="llama", layers=24, hidden_size=64, intermediate_size=128),
}
CLASSES = (
    "embed_tokens",
    "self_attn",
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "mlp",
    "gate_proj",
    "up_proj",
    "down_proj",
)
NORMS = ("norm", "model.norm", "input_layernorm", "post_attention_layernorm")
ONLY = {"llama": ("lm_head",), "qwen2": ("bias",), "qwen3": ("q_norm", "k_norm"), "deep": ()}


@cache
def moved(name: str, frozen: str | None = None, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Log-probs of a canary after the perturbation, with one class of tensors as it was."""
    model = tiny_model(MODELS[name], byte_tokenizer(), seed=0).to(dtype)
    ids = torch.randint(0, 256, (4, 24), generator=torch.Generator().manual_seed(0))
    touched = [(n, w) for n, w in model.named_parameters() if frozen is None or frozen not in n]
    assert frozen is None or len(touched) < len(list(model.named_parameters()))
    with torch.no_grad():
        for parameter, weight in touched:
            add_noise(parameter, weight)
        logprobs = model(ids).logits.float().log_softmax(-1)
    return logprobs[:, :-1].gather(-1, ids[:, 1:, None])


@pytest.mark.parametrize(
    ("model", "frozen"), [(model, kind) for model in MODELS for kind in (*CLASSES, *NORMS, *ONLY[model])]
)
def test_a_class_that_stays_behind_is_off_by_far_more_than_the_start_check_allows(model: str, frozen: str) -> None:
    assert (moved(model, frozen) - moved(model)).abs().max() >= 2.5 * VERIFY_FACTOR * TOLERANCE


@pytest.mark.parametrize("model", MODELS)
def test_rounding_alone_is_half_of_what_the_start_check_allows(model: str) -> None:
    assert (moved(model) - moved(model, dtype=torch.float32)).abs().max() <= VERIFY_FACTOR * TOLERANCE / 2


def noise(name: str, *shape: int, seed: int = 0) -> torch.Tensor:
    tensor = torch.zeros(shape)
    add_noise(name, tensor, seed=seed)
    return tensor


@pytest.mark.parametrize("ranks", [2, 3])
def test_however_a_tensor_is_divided_its_elements_get_the_same_noise(ranks: int) -> None:
    shape = (3, BLOCK)  # longer than the block of noise
    whole = noise("w", *shape)
    parts = torch.zeros(shape).view(-1).tensor_split(ranks)
    for rank, part in enumerate(parts):
        add_noise("w", part, shape, start=sum(len(one) for one in parts[:rank]))
    assert torch.equal(torch.cat(parts), whole.view(-1))


def test_no_two_rows_of_a_large_matrix_get_the_same_noise() -> None:
    rows = noise("w", 4096, 1024)
    assert len(torch.unique(rows, dim=0)) == len(rows)
    assert rows.mean().abs() < 1e-4
    assert abs(rows.std() * math.sqrt(1024) - 1) < 1e-3


def test_noise_depends_on_name_and_seed_only() -> None:
    one = noise("layers.0.mlp.weight", 4, 4)
    assert torch.equal(one, noise("layers.0.mlp.weight", 4, 4))
    assert not torch.equal(one, noise("layers.1.mlp.weight", 4, 4))
    assert not torch.equal(one, noise("layers.0.mlp.weight", 4, 4, seed=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_tensor_keeps_its_dtype(dtype: torch.dtype) -> None:
    weight = torch.ones(8, 8, dtype=dtype)
    add_noise("w", weight)
    expected = (1 + noise("w", 8, 8)).to(dtype)
    assert weight.dtype == dtype
    torch.testing.assert_close(weight, expected)
