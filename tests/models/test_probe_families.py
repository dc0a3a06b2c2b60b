"""What the probe says of a family of models is what a comparison without it says, whatever that is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlhf.errors import ModelError
from rlhf.models.policy import PolicyModel
from rlhf.models.probe import check_packed_forward

SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "head_dim": 32, "initializer_range": 0.2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {"sliding_window": None}, "qwen2": {}, "qwen3": {}, "gemma": {}, "phi3": {}, "olmo2": {},
    "smollm3": {}, "granite": {}, "granite-scaled": {"logits_scaling": 8.0}, "cohere": {"logit_scale": 4.0},
    "gpt_neox": {}, "stablelm": {}, "starcoder2": {"sliding_window": None}, "glm4": {}, "falcon_h1": {},
}  # fmt: skip
LENGTHS = (40, 30, 20)


def made(family: str, attention: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family.partition("-")[0], **SHAPE | FAMILIES[family])
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def largest_gap(model: PreTrainedModel) -> float:
    """Of log-probs, in nats: three sequences in one row as they are trained, and each alone in transformers' hands."""
    sequences = [torch.randint(3, 64, (n,), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]
    row = torch.cat(sequences)[None]
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    targets = torch.tensor([n for n in range(row.shape[1]) if positions[0, n] > 0])
    with torch.no_grad():
        packed, _ = PolicyModel(model)(row, positions, targets - 1, targets, 1.0)
        alone = [model(ids[None], use_cache=False).logits[0, :-1].log_softmax(-1) for ids in sequences]
    expected = torch.cat([one.gather(-1, ids[1:, None])[:, 0] for one, ids in zip(alone, sequences, strict=True)])
    return float((packed - expected).abs().max())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_probe_takes_the_models_that_compute_in_rows_what_they_compute_alone(family: str, attention: str) -> None:
    model = made(family, attention)
    try:
        check_packed_forward(model, family)
    except ModelError:
        assert largest_gap(model) > 1e-2, "refused, and nothing is wrong with it"
    else:
        assert largest_gap(model) < 1e-4
