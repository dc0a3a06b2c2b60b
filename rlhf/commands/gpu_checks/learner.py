"""Checks of the learner's arithmetic on a GPU: bfloat16 against float32, packed rows, one step. Without DeepSpeed."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf.commands.gpu_checks.finding import Finding
from rlhf.commands.gpu_checks.machine import GpuMachine
from rlhf.commands.gpu_checks.made_model import checked_model
from rlhf.errors import ModelError
from rlhf.models.head import head_logprobs
from rlhf.models.loading import load_policy
from rlhf.models.policy import PolicyModel, hidden_states, logits_of
from rlhf.models.probe import check_packed_forward
from rlhf.models.rounding import rounded
from rlhf.weight_sync.canary import canary, disagreement
from rlhf.weight_sync.tolerance import measured

LOSS_OFF = 0.02
"""Largest difference of the mean log-prob in bfloat16 from float32's, relative."""
LEAST_COSINE = 0.97
"""Least cosine between the gradients in bfloat16 and in float32."""


def rounding(machine: GpuMachine) -> Finding:
    """The canary's log-probs in bfloat16 against float32's of the same weights: within what is measured as rounding,
    and what a fixed `trainer.weight_sync.tolerance` would have to be."""
    model = _loaded(machine, "bfloat16")
    tokens = torch.from_numpy(np.stack(canary(_vocabulary(model), 4096, None).sequences)).long()
    tokens = tokens.to(model.device)
    own = _logprobs(model, tokens)
    with rounded(model):
        limits = measured(np.abs(_logprobs(model, tokens) - own))
    torch.nn.Module.to(model, torch.float32)
    exact = _logprobs(model, tokens)
    gaps = np.abs(own - exact)
    mean, high, most = float(gaps.mean()), float(np.quantile(gaps, 0.99)), float(gaps.max())
    fault = disagreement(list(own), list(exact), limits)
    return Finding(
        good=fault is None,
        expected=f"mean at most {limits.mean:.3g} nats, 99 % at most {limits.high:.3g}",
        found=f"mean {mean:.3g}, 99 % {high:.3g}, largest {most:.3g} (as a fixed tolerance: {4 * most:.2g})",
        figures={"mean": mean, "p99": high, "max": most, "suggested_tolerance": 4 * most},
    )


def packed_rows(machine: GpuMachine) -> Finding:
    """Packed rows against single sequences with this device's kernels, as every start of a run compares them."""
    fault = ""
    try:
        check_packed_forward(_loaded(machine, "bfloat16"), checked_model(machine), device=machine.device.place)
    except ModelError as error:
        fault = str(error)
    return Finding(
        good=not fault, expected="logits of packed rows are the model's own", found=fault or "they are, within rounding"
    )


def learner_step(machine: GpuMachine) -> Finding:
    """A forward and backward pass over a packed row: loss and gradient in bfloat16 against float32, tokens a second,
    the head's share of the time, and the peak of memory."""
    model = _loaded(machine, "bfloat16")
    row = _row(machine, model)
    loss, seconds = _timed(machine, lambda: _loss(model, row))
    machine.device.restart_peak()
    loss, seconds = _timed(machine, lambda: _loss(model, row))
    peak, share = machine.device.peak_bytes() / 2**30, _head_seconds(machine, model, row) / seconds
    narrow = _gradients(model)
    model.zero_grad(set_to_none=True)
    torch.nn.Module.to(model, torch.float32)
    exact = _loss(model, row)
    cosine = _cosine(narrow, _gradients(model))
    off = abs(loss - exact) / max(abs(exact), 1e-9)
    rate = row.numel() / seconds
    return Finding(
        good=off <= LOSS_OFF and cosine >= LEAST_COSINE,
        expected=f"loss off by at most {LOSS_OFF:.0%}, cosine of the gradients at least {LEAST_COSINE}",
        found=f"off by {off:.2%}, {cosine:.4f}; {rate:.0f} tokens/s, head {share:.0%}, peak {peak:.1f} GiB",
        figures={"tokens_per_s": rate, "head_share": share, "peak_gib": peak, "loss_error": off, "cosine": cosine},
    )


def float16_overflow(machine: GpuMachine) -> Finding:
    """A loss too large for float16 gives a gradient norm of infinity, by which a step is skipped, and no crash."""
    weight = torch.ones(256, 256, dtype=torch.float16, device=machine.device.place, requires_grad=True)
    torch.autograd.backward(((weight * 2.0**15) * 2.0).sum())
    norm = float(torch.nn.utils.clip_grad_norm_([weight], 1.0))
    small = torch.ones(4, dtype=torch.float16, device=machine.device.place, requires_grad=True)
    torch.autograd.backward(small.sum())
    kept = float(torch.nn.utils.clip_grad_norm_([small], 1e9))
    return Finding(
        good=norm == float("inf") and kept == 2.0,
        expected="norms inf and 2",
        found=f"{norm:g} and {kept:g}",
    )


def _loaded(machine: GpuMachine, dtype: str) -> PreTrainedModel:
    model = load_policy(checked_model(machine), dtype=dtype)
    torch.nn.Module.to(model, machine.device.place)
    return model


def _vocabulary(model: PreTrainedModel) -> int:
    return int(model.config.get_text_config().vocab_size)


def _logprobs(model: PreTrainedModel, tokens: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Log-probs `[N, T - 1]` of `tokens` `[N, T]`, sequence by sequence."""
    found = []
    with torch.no_grad():
        for ids in tokens:
            logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
            found.append(logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0].cpu().numpy())
    return np.stack(found)


def _row(machine: GpuMachine, model: PreTrainedModel) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    row = torch.randint(_vocabulary(model), (1, machine.sizes.learned_tokens), generator=generator)
    return row.to(model.device)


def _loss(model: PreTrainedModel, row: Tensor) -> float:
    """Minus the mean log-prob of a row of two sequences, with its gradient."""
    model.zero_grad(set_to_none=True)
    half = row.shape[1] // 2
    places = torch.arange(half, device=row.device).repeat(2)[None]
    sources = torch.cat([torch.arange(half - 1), torch.arange(half, 2 * half - 1)]).to(row.device)
    logprobs, _ = PolicyModel(model)(row, places, sources, sources + 1, 1.0)
    loss = -logprobs.mean()
    torch.autograd.backward(loss)
    return float(loss.detach())


def _timed(machine: GpuMachine, work: Callable[[], float]) -> tuple[float, float]:
    machine.device.synchronise()
    started = time.perf_counter()
    value = work()
    machine.device.synchronise()
    return value, time.perf_counter() - started


def _head_seconds(machine: GpuMachine, model: PreTrainedModel, row: Tensor) -> float:
    """Seconds of the head alone, forward and backward, over the row's hidden states."""
    places = torch.arange(row.shape[1], device=row.device)[None]
    with torch.no_grad():
        hidden = hidden_states(model, row, places)[0]
    leaf = hidden.clone().requires_grad_()
    kept = [weight.grad for weight in model.parameters()]

    def work() -> float:
        logprobs, _ = head_logprobs(
            lambda states: logits_of(model, states), leaf, row[0], vocabulary=model.config.vocab_size
        )
        torch.autograd.backward(logprobs.sum())
        return 0.0

    for weight in model.parameters():
        weight.grad = None
    _, seconds = _timed(machine, work)
    for weight, gradient in zip(model.parameters(), kept, strict=True):
        weight.grad = gradient
    return seconds


def _gradients(model: PreTrainedModel) -> list[Tensor]:
    """Of every weight that has one, in float32 on the host."""
    return [weight.grad.float().cpu() for weight in model.parameters() if weight.grad is not None]


def _cosine(found: list[Tensor], expected: list[Tensor]) -> float:
    """Cosine between two gradients, each given tensor by tensor."""
    pairs = list(zip(found, expected, strict=True))
    product = sum(float((a.double() * b.double()).sum()) for a, b in pairs)
    sizes = [sum(float(one.double().square().sum()) for one in side) ** 0.5 for side in (found, expected)]
    return float(product / max(sizes[0] * sizes[1], 1e-30))
