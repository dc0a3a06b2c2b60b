"""On a GPU the learner's arithmetic in bfloat16 equals float32's up to rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf.apps.gpu_checks.machine import GpuMachine
from rlhf.apps.gpu_checks.made_model import checked_model
from rlhf.models.loading import load_policy
from rlhf.models.policy import PolicyModel
from rlhf.models.rounding import rounded
from rlhf.weight_sync.canary import canary, disagreement
from rlhf.weight_sync.tolerance import measured

pytestmark = pytest.mark.gpu
ROW_TOKENS = 4096


def loaded(machine: GpuMachine) -> PreTrainedModel:
    model = load_policy(checked_model(machine), dtype="bfloat16")
    torch.nn.Module.to(model, machine.device)
    return model


def logprobs(model: PreTrainedModel, tokens: Tensor) -> np.ndarray:
    """Log-probs `[N, T - 1]` of `tokens` `[N, T]`, sequence by sequence."""
    found = []
    with torch.no_grad():
        for ids in tokens:
            logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
            found.append(logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0].cpu().numpy())
    return np.stack(found)


def test_the_canary_is_within_the_rounding_that_is_measured(machine: GpuMachine) -> None:
    model = loaded(machine)
    sequences = canary(model.config.vocab_size, 4096, None).sequences
    tokens = torch.from_numpy(np.stack(sequences)).long().to(machine.device)
    narrow = logprobs(model, tokens)
    with rounded(model):
        limits = measured(np.abs(logprobs(model, tokens) - narrow))
    torch.nn.Module.to(model, torch.float32)
    assert disagreement(list(narrow), list(logprobs(model, tokens)), limits) is None


def loss_and_gradient(model: PreTrainedModel, row: Tensor) -> tuple[float, Tensor]:
    """Minus the mean log-prob of a row of two sequences, and its gradient for all weights in float64."""
    model.zero_grad(set_to_none=True)
    half = row.shape[1] // 2
    places = torch.arange(half, device=row.device).repeat(2)[None]
    sources = torch.cat([torch.arange(half - 1), torch.arange(half, 2 * half - 1)]).to(row.device)
    found, _ = PolicyModel(model)(row, places, sources, sources + 1, 1.0)
    loss = -found.mean()
    torch.autograd.backward(loss)
    gradients = [weight.grad.double().cpu().flatten() for weight in model.parameters() if weight.grad is not None]
    return float(loss.detach()), torch.cat(gradients)


def test_a_step_has_the_loss_and_the_gradient_of_float32(machine: GpuMachine) -> None:
    model = loaded(machine)
    generator = torch.Generator().manual_seed(0)
    row = torch.randint(model.config.vocab_size, (1, ROW_TOKENS), generator=generator).to(machine.device)
    loss, gradient = loss_and_gradient(model, row)
    torch.nn.Module.to(model, torch.float32)
    exact_loss, exact = loss_and_gradient(model, row)
    assert loss == pytest.approx(exact_loss, rel=0.02)
    assert float(gradient @ exact / (gradient.norm() * exact.norm())) >= 0.97
