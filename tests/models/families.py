"""Tiny random models of other families: what they do about masks, windows and positions is transformers' own."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import PreTrainedModel

from tests.architectures.families import FAMILIES, made

NAMES = ("falcon", "gemma3", "gpt_oss", "mistral", "phi3", "qwen2-sliding")
CASES = [
    (name, attention)
    for name in NAMES
    for attention in ("sdpa", "eager")
    if (name, attention) != ("gpt_oss", "sdpa")  # transformers has none for it
]


def family_model(name: str, attention: str) -> PreTrainedModel:
    """Its logits are spread like a trained model's: a token that is seen or not makes nats of a difference."""
    family = next(family for family in FAMILIES if family.name == name)
    if name == "gpt_oss":  # every expert is chosen, so that no rounding decides
        family = replace(family, settings={**family.settings, "num_experts": 2, "num_local_experts": 2})
    model = made(family, attn_implementation=attention)
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if weight.ndim > 1 and "embed" not in weight_name and "lm_head" not in weight_name:
                weight.normal_(0, 1.0 / weight.shape[-1] ** 0.5)
        model.get_output_embeddings().weight.normal_(0, 0.5)  # type: ignore[no-untyped-call]
    return model.train()
