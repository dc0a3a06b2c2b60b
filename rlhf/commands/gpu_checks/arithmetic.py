"""Checks of single operations on a GPU: right against a wider format, and about as fast as the card is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rlhf.commands.gpu_checks.device import mean_seconds
from rlhf.commands.gpu_checks.finding import Finding
from rlhf.commands.gpu_checks.machine import Machine

SHARE_OF_PEAK = 0.4
"""Least share of the card's figures that one large operation must reach; 60 to 85 % is usual, and a card that is
throttled, shared or on a slow slot has less."""
LEAST_COPY_GB = 5.0
"""Pinned copies to the GPU, GB/s: below this is less than PCIe 3.0 with 8 lanes."""
ROUNDING = 2**-6
"""Largest error of a product in bfloat16 relative to the largest entry: its rounding is 2^-9."""
REPEATS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A card's dense bfloat16 TFLOP/s and its memory's GB/s, of NVIDIA's data sheets (the slower of SXM and PCIe)."""

    tflops: float
    memory_gb: float


PEAKS = {
    "B200": Peak(tflops=2250, memory_gb=7700),
    "GH200": Peak(tflops=989, memory_gb=4000),
    "H200": Peak(tflops=835, memory_gb=4800),
    "H100": Peak(tflops=756, memory_gb=2000),
    "H800": Peak(tflops=756, memory_gb=2000),
    "A100": Peak(tflops=312, memory_gb=1555),
    "L40S": Peak(tflops=362, memory_gb=864),
    "L4": Peak(tflops=121, memory_gb=300),
    "A10": Peak(tflops=125, memory_gb=600),
    "RTX 4090": Peak(tflops=165, memory_gb=1008),
}
UNKNOWN = Peak(tflops=0, memory_gb=0)


def peak_of(name: str) -> Peak:
    """The figures of the card with this name: the longest known name in it; zeros for others, which are measured
    only."""
    known = [one for one in PEAKS if one in name]
    return PEAKS[max(known, key=len)] if known else UNKNOWN


def matrix_product(machine: Machine) -> Finding:
    """A product in bfloat16 against float32's, and its TFLOP/s."""
    size = machine.sizes.matrix
    a, b = (_random(machine, seed, size, size).bfloat16() for seed in (0, 1))
    exact = a.float() @ b.float()
    off = _relative(a @ b, exact)
    tflops = 2 * size**3 / mean_seconds(machine.device, lambda: a @ b, REPEATS) / 1e12
    least = SHARE_OF_PEAK * peak_of(machine.driver.gpus[0].name).tflops
    return Finding(
        good=off <= ROUNDING and tflops >= least,
        expected=f"at least {least:.0f} TFLOP/s, off by at most {ROUNDING:.2g}",
        found=f"{tflops:.3g} TFLOP/s, off by {off:.2g}",
        figures={"bf16_tflops": tflops, "error": off},
    )


def memory_bandwidth(machine: Machine) -> Finding:
    """A copy within the device's memory, read and written once."""
    source = torch.zeros(machine.sizes.copied_mb * 2**20, dtype=torch.uint8, device=machine.device.place)
    target = torch.empty_like(source)
    seconds = mean_seconds(machine.device, lambda: target.copy_(source), REPEATS)
    rate = 2 * source.numel() / seconds / 1e9
    least = SHARE_OF_PEAK * peak_of(machine.driver.gpus[0].name).memory_gb
    return Finding(
        good=rate >= least,
        expected=f"at least {least:.0f} GB/s",
        found=f"{rate:.4g} GB/s",
        figures={"memory_gb_per_s": rate},
    )


def host_copies(machine: Machine) -> Finding:
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
        good=same and min(down, up) >= LEAST_COPY_GB * bool(peak_of(machine.driver.gpus[0].name).memory_gb),
        expected=f"the same bits, at least {LEAST_COPY_GB:g} GB/s",
        found=f"{'the same' if same else 'other'} bits, {down:.3g} GB/s to the GPU, {up:.3g} back",
        figures={"to_gpu_gb_per_s": down, "to_host_gb_per_s": up},
    )


def compiled_kernel(machine: Machine) -> Finding:
    """A function through `torch.compile`, which makes a Triton kernel on a GPU, against the same one uncompiled."""
    gate, up = (_random(machine, seed, machine.sizes.attended, 256) for seed in (0, 1))
    off = _relative(machine.device.compiled(_gated)(gate, up), _gated(gate, up))
    return Finding(good=off <= 1e-5, expected="off by at most 1e-05", found=f"off by {off:.2g}", figures={"error": off})


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    return torch.nn.functional.silu(gate) * up


def flash_attention(machine: Machine) -> Finding:
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


def fused_adamw(machine: Machine) -> Finding:
    """torch's fused AdamW against the plain one: on the device, and on the host, where offloaded state is stepped."""
    off = {place: _adamw_error(machine, place) for place in (machine.device.place, "cpu")}
    worst = max(off.values())
    return Finding(
        good=worst <= 1e-6,
        expected="off by at most 1e-06 after 3 steps",
        found=", ".join(f"{place} {error:.2g}" for place, error in off.items()),
    )


def _adamw_error(machine: Machine, place: str) -> float:
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


def mixed_streams(machine: Machine) -> Finding:
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


def _random(machine: Machine, seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(machine.device.place)


def _relative(found: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the largest expected entry; infinite where something is not a number."""
    gap = float((found.detach().float() - expected.detach().float()).abs().max() / expected.detach().abs().max())
    return gap if gap == gap else float("inf")
