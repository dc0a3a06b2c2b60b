"""Check single operations on a GPU: their results against a wider format, and their speed against the data sheet."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rlhf.apps.gpu_checks.machine import Finding, GpuMachine
from rlhf.cluster.machine import this_machines_gpus
from rlhf.recipe.planning.machines import Card, card_named

SHARE_OF_PEAK = 0.35
"""Least share of the data sheet's figures for SXM that one large operation must reach. Usual are 60 to 85 %, on PCIe
three quarters of that, on a throttled or shared card less."""
LEAST_COPY_GB = 5.0
"""Least rate of pinned copies in GB/s: PCIe 3.0 with 8 lanes is faster."""
ROUNDING = 2**-6
"""Largest error of a product in bfloat16 relative to the largest entry: its rounding is 2^-9."""


def least_rate(rate: Callable[[Card], float]) -> float:
    """Return the rate that this machine's card must reach; 0 for an unknown card."""
    gpus = this_machines_gpus()
    card = card_named(gpus[0].name) if gpus else None
    return SHARE_OF_PEAK * rate(card) if card else 0.0


def matrix_product(machine: GpuMachine) -> Finding:
    """Compare a product in bfloat16 with float32's, and measure its TFLOP/s."""
    size = machine.sizes.matrix
    a, b = (machine.random(seed, size, size).bfloat16() for seed in (0, 1))
    exact = a.float() @ b.float()
    off = relative_error(a @ b, exact)
    tflops = 2 * size**3 / machine.mean_seconds(lambda: a @ b) / 1e12
    least = least_rate(lambda card: card.flops) / 1e12
    return Finding(
        good=off <= ROUNDING and tflops >= least,
        expected=f"at least {least:.0f} TFLOP/s, off by at most {ROUNDING:.2g}",
        found=f"{tflops:.3g} TFLOP/s, off by {off:.2g}",
        figures={"bf16_tflops": tflops, "error": off},
    )


def memory_bandwidth(machine: GpuMachine) -> Finding:
    """Measure a copy within the device's memory, which reads and writes every byte once."""
    source = torch.zeros(machine.sizes.copied_mb * 2**20, dtype=torch.uint8, device=machine.device)
    target = torch.empty_like(source)
    seconds = machine.mean_seconds(lambda: target.copy_(source))
    rate = 2 * source.numel() / seconds / 1e9
    least = least_rate(lambda card: card.bandwidth) / 1e9
    return Finding(
        good=rate >= least,
        expected=f"at least {least:.0f} GB/s",
        found=f"{rate:.4g} GB/s",
        figures={"memory_gb_per_s": rate},
    )


def host_copies(machine: GpuMachine) -> Finding:
    """Copy pinned host memory to the device and back: compare the bits, and measure the rate of offloading."""
    count = machine.sizes.copied_mb * 2**18
    source = torch.arange(count, dtype=torch.int32)
    source = source.pin_memory() if machine.on_gpu else source
    there = torch.empty(count, dtype=torch.int32, device=machine.device)
    size = source.numel() * source.element_size()
    down = size / machine.mean_seconds(lambda: there.copy_(source, non_blocking=True)) / 1e9
    back = torch.zeros_like(source, pin_memory=machine.on_gpu)
    up = size / machine.mean_seconds(lambda: back.copy_(there, non_blocking=True)) / 1e9
    same = torch.equal(back, source)
    return Finding(
        good=same and min(down, up) >= LEAST_COPY_GB,
        expected=f"the same bits, at least {LEAST_COPY_GB:g} GB/s",
        found=f"{'equal' if same else 'different'} bits, {down:.3g} GB/s to the GPU, {up:.3g} back",
        figures={"to_gpu_gb_per_s": down, "to_host_gb_per_s": up},
    )


def compiled_kernel(machine: GpuMachine) -> Finding:
    """Compare a function compiled by `torch.compile`, on a GPU a Triton kernel, with the same function uncompiled."""
    gate, up = (machine.random(seed, machine.sizes.attended, 256) for seed in (0, 1))
    compiled = torch.compile(_gated, backend="inductor" if machine.on_gpu else "eager")
    off = relative_error(compiled(gate, up), _gated(gate, up))
    return Finding(good=off <= 1e-5, expected="off by at most 1e-05", found=f"off by {off:.2g}", figures={"error": off})


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    return torch.nn.functional.silu(gate) * up


def flash_attention(machine: GpuMachine) -> Finding:
    """Compare SDPA's flash attention in bfloat16, forward and backward, with plain attention in float32."""
    shape = (1, 4, machine.sizes.attended, 64)
    exact = [machine.random(seed, *shape).requires_grad_() for seed in range(3)]
    narrow = [tensor.detach().bfloat16().requires_grad_() for tensor in exact]
    upstream = machine.random(3, *shape)
    expected = _attended(SDPBackend.MATH, exact, upstream)
    found = _attended(SDPBackend.FLASH_ATTENTION, narrow, upstream.bfloat16())
    pairs = [(found, expected), *((a.grad, b.grad) for a, b in zip(narrow, exact, strict=True))]
    forward, *backward = (relative_error(a, b) for a, b in pairs if a is not None and b is not None)
    return Finding(
        good=len(backward) == 3 and max(forward, *backward) <= 2 * ROUNDING,
        expected=f"forward and gradients off by at most {2 * ROUNDING:.2g}",
        found=f"off by {forward:.2g} and {max(backward):.2g}",
        figures={"forward_error": forward, "gradient_error": max(backward)},
    )


def _attended(kernel: SDPBackend, inputs: list[Tensor], upstream: Tensor) -> Tensor:
    """Return the causal attention of query, key and value, and set their gradients."""
    query, key, value = inputs
    with sdpa_kernel(kernel):
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        torch.autograd.backward(attended, upstream)
    return attended


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest expected entry; infinite where a value is not a number."""
    gap = float((found.detach().float() - expected.detach().float()).abs().max() / expected.detach().abs().max())
    return gap if gap == gap else float("inf")
