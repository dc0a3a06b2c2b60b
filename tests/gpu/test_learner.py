"""On a GPU the learner's arithmetic in bfloat16 equals float32's up to rounding."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf.commands.gpu_checks.arithmetic import relative_error
from rlhf.commands.gpu_checks.machine import GpuMachine
from rlhf.commands.gpu_checks.made_model import checked_model
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


@pytest.mark.parametrize("place", ["cuda:0", "cpu"])
def test_fused_adamw_steps_as_the_plain_one(machine: GpuMachine, place: str) -> None:
    """On the CPU too, where offloaded state is stepped."""
    ends = []
    for fused in (True, False):
        weight = torch.nn.Parameter(machine.random(0, 1024).to(place))
        optimizer = torch.optim.AdamW([weight], lr=1e-2, weight_decay=0.1, fused=fused, foreach=False)
        for step in range(3):
            weight.grad = machine.random(1, 1024).to(place) * (step + 1)
            optimizer.step()
        ends.append(weight.detach())
    assert relative_error(ends[0], ends[1]) <= 1e-6


def test_copies_on_several_streams_have_the_bits_that_were_made(machine: GpuMachine) -> None:
    """A small and a large tensor of the default stream are copied on two others, as weight syncs do."""
    for value in range(100):
        for count in (64, 2**24):
            made = torch.full((count,), float(value), device=machine.device)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            context: AbstractContextManager[None] = torch.cuda.stream(stream)
            with context:
                copy = made.clone()
            torch.cuda.synchronize()
            assert bool((copy == value).all())
