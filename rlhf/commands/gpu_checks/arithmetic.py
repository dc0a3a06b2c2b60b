"""Checks of single operations on a GPU: right against a wider format, and about as fast as the card is."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rlhf.commands.gpu_checks.device import mean_seconds
from rlhf.commands.gpu_checks.finding import Finding
from rlhf.commands.gpu_checks.machine import GpuMachine
from rlhf.recipe.planning.machines import CARDS, Card

SHARE_OF_PEAK = 0.35
"""Least share of the data sheet's figures that one large operation must reach: 60 to 85 % is usual. The figures are
those of SXM, of which a PCIe card has three quarters; one that is throttled or shared has less."""
LEAST_COPY_GB = 5.0
"""Pinned copies to the GPU, GB/s: below this is less than PCIe 3.0 with 8 lanes."""
ROUNDING = 2**-6
"""Largest error of a product in bfloat16 relative to the largest entry: its rounding is 2^-9."""
REPEATS = 10


def card_named(name: str) -> Card | None:
    """The card that the driver calls `NVIDIA A100-SXM4-40GB`, with its data sheet's figures; None for one that is not
    known here."""
    words = re.split(r"[\s-]+", name)
    told = {*words, *map("".join, pairwise(words))}
    known = [card for card in CARDS.values() if told.issuperset(card.name.split("-"))]
    return max(known, key=lambda card: len(card.name), default=None)


def least_rate(machine: GpuMachine, rate: Callable[[Card], float]) -> float:
    """What the machine's card must reach of a rate of its data sheet; 0 for an unknown card, which is measured only."""
    card = card_named(machine.driver.gpus[0].name)
    return SHARE_OF_PEAK * rate(card) if card else 0.0


def matrix_product(machine: GpuMachine) -> Finding:
    """A product in bfloat16 against float32's, and its TFLOP/s."""
    size = machine.sizes.matrix
    a, b = (_random(machine, seed, size, size).bfloat16() for seed in (0, 1))
    exact = a.float() @ b.float()
    off = _relative(a @ b, exact)
    tflops = 2 * size**3 / mean_seconds(machine.device, lambda: a @ b, REPEATS) / 1e12
    least = least_rate(machine, lambda card: card.flops) / 1e12
    return Finding(
        good=off <= ROUNDING and tflops >= least,
        expected=f"at least {least:.0f} TFLOP/s, off by at most {ROUNDING:.2g}",
        found=f"{tflops:.3g} TFLOP/s, off by {off:.2g}",
        figures={"bf16_tflops": tflops, "error": off},
    )


def memory_bandwidth(machine: GpuMachine) -> Finding:
    """A copy within the device's memory, read and written once."""
    source = torch.zeros(machine.sizes.copied_mb * 2**20, dtype=torch.uint8, device=machine.device.place)
    target = torch.empty_like(source)
    seconds = mean_seconds(machine.device, lambda: target.copy_(source), REPEATS)
    rate = 2 * source.numel() / seconds / 1e9
    least = least_rate(machine, lambda card: card.bandwidth) / 1e9
    return Finding(
        good=rate >= least,
        expected=f"at least {least:.0f} GB/s",
        found=f"{rate:.4g} GB/s",
        figures={"memory_gb_per_s": rate},
    )


def host_copies(machine: GpuMachine) -> Finding:
    """Pinned host memory to the device and back: the same bits, and the rate that offloading will have."""
    count = machine.sizes.copied_mb * 2**18
    source = machine.device.pinned(torch.arange(count, dtype=torch.int32))
    there = torch.empty(count, dtype=torch.int32, device=machine.device.place)
    size = source.numel() * source.element_size()
    down = size / mean_seconds(machine.device, lambda: there.copy_(source, non_blocking=True), REPEATS) / 1e9
    back = machine.device.pinned(torch.zeros_like(source))
    up = size / mean_seconds(machine.device, lambda: back.copy_(there, non_blocking=True), REPEATS) / 1e9
    same = torch.equal(back, source)
    return Finding(
        good=same and min(down, up) >= LEAST_COPY_GB,
        expected=f"the same bits, at least {LEAST_COPY_GB:g} GB/s",
        found=f"{'the same' if same else 'other'} bits, {down:.3g} GB/s to the GPU, {up:.3g} back",
        figures={"to_gpu_gb_per_s": down, "to_host_gb_per_s": up},
    )


def compiled_kernel(machine: GpuMachine) -> Finding:
    """A function through `torch.compile`, which makes a Triton kernel on a GPU, against the same one uncompiled."""
    gate, up = (_random(machine, seed, machine.sizes.attended, 256) for seed in (0, 1))
    off = _relative(machine.device.compiled(_gated)(gate, up), _gated(gate, up))
    return Finding(good=off <= 1e-5, expected="off by at most 1e-05", found=f"off by {off:.2g}", figures={"error": off})


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    return torch.nn.functional.silu(gate) * up


def flash_attention(machine: GpuMachine) -> Finding:
    """Flash attention of SDPA in bfloat16, forward and backward, against float32's plain attention."""
    shape = (1, 4, machine.sizes.attended, 64)
    exact = [_random(machine, seed, *shape).requires_grad_() for seed in range(3)]
    narrow = [one.detach().bfloat16().requires_grad_() for one in exact]
    upstream = _random(machine, 3, *shape)
    expected = _attended(SDPBackend.MATH, exact, upstream)
    found = _attended(SDPBackend.FLASH_ATTENTION, narrow, upstream.bfloat16())
    pairs = [(found, expected), *((a.grad, b.grad) for a, b in zip(narrow, exact, strict=True))]
    forward, *backward = (_relative(a, b) for a, b in pairs if a is not None and b is not None)
    return Finding(
        good=len(backward) == 3 and max(forward, *backward) <= 2 * ROUNDING,
        expected=f"forward and gradients off by at most {2 * ROUNDING:.2g}",
        found=f"off by {forward:.2g} and {max(backward):.2g}",
        figures={"forward_error": forward, "gradient_error": max(backward)},
    )


def _attended(kernel: SDPBackend, inputs: list[Tensor], upstream: Tensor) -> Tensor:
    """Causal attention of query, key and value, which get their gradients."""
    query, key, value = inputs
    with sdpa_kernel(kernel):
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        torch.autograd.backward(attended, upstream)
    return attended


def fused_adamw(machine: GpuMachine) -> Finding:
    """torch's fused AdamW against the plain one: on the device, and on the host, where offloaded state is stepped."""
    off = {place: _adamw_error(machine, place) for place in (machine.device.place, "cpu")}
    worst = max(off.values())
    return Finding(
        good=worst <= 1e-6,
        expected="off by at most 1e-06 after 3 steps",
        found=", ".join(f"{place} {error:.2g}" for place, error in off.items()),
    )


def _adamw_error(machine: GpuMachine, place: str) -> float:
    start, gradient = (_random(machine, seed, 1024).to(place) for seed in (0, 1))
    ends = []
    for fused in (True, False):
        weight = torch.nn.Parameter(start.clone())
        optimizer = torch.optim.AdamW([weight], lr=1e-2, weight_decay=0.1, fused=fused, foreach=False)
        for step in range(3):
            weight.grad = gradient * (step + 1)
            optimizer.step()
        ends.append(weight.detach())
    return _relative(ends[0], ends[1])


def mixed_streams(machine: GpuMachine) -> Finding:
    """Small and large tensors made on the default stream and copied on two others, as weight syncs do: every copy has
    the bits that were made."""
    large, wrong = machine.sizes.copied_mb * 2**18 // 16, 0
    for one in range(machine.sizes.rounds):
        made = [torch.full((count,), float(one), device=machine.device.place) for count in (64, large)]
        copies = []
        for tensor, stream in zip(made, machine.device.on_streams(2), strict=True):
            with stream:
                copies.append(tensor.clone())
        machine.device.synchronise()
        wrong += sum(not bool((copy == one).all()) for copy in copies)
    return Finding(
        good=wrong == 0,
        expected=f"{2 * machine.sizes.rounds} copies of the same bits",
        found=f"{wrong} of {2 * machine.sizes.rounds} differ",
    )


def _random(machine: GpuMachine, seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(machine.device.place)


def _relative(found: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the largest expected entry; infinite where something is not a number."""
    gap = float((found.detach().float() - expected.detach().float()).abs().max() / expected.detach().abs().max())
    return gap if gap == gap else float("inf")
