"""How far rounding alone moves what a model computes: the same forward pass, with every linear layer rounded otherwise.

Two implementations of one model add up in different orders. Each product then differs in its last bit, here as there,
and what becomes of it depends on the weights, the depth and the sequences. This measures it without the other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

SEED = 0
"""Of the draws: a measurement repeats."""


@contextmanager
def rounded(model: nn.Module) -> Iterator[None]:
    """Within the block every linear layer of `model` gives numbers that are off by up to half a unit in their last
    place, at random, and rounded again."""
    generators: dict[torch.device, torch.Generator] = {}

    def off(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if output.device not in generators:
            generators[output.device] = torch.Generator(output.device).manual_seed(SEED)
        draws = torch.rand(output.shape, generator=generators[output.device], device=output.device) - 0.5
        wide = torch.float64 if output.dtype == torch.float32 else torch.float32
        return (output.to(wide) * (1 + draws.to(wide) * torch.finfo(output.dtype).eps)).to(output.dtype)

    hooks = [module.register_forward_hook(off) for module in model.modules() if isinstance(module, nn.Linear)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
