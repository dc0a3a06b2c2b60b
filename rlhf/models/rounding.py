"""Measures how much rounding alone changes a model's output, by a forward pass with other rounding in every linear
layer.

Two implementations of a model add in different orders, so products differ in their last bit. How large the effect
becomes depends on the weights, the depth and the sequences. This measures it without the other implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

SEED = 0
"""Seed of the random numbers, so that a measurement can be repeated."""


@contextmanager
def rounded(model: nn.Module, seed: int = SEED) -> Iterator[None]:
    """Inside the block, every output of `model`'s linear layers is changed at random by up to half a unit in the last
    place, and rounded again."""
    generators: dict[torch.device, torch.Generator] = {}

    def off(forward: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        output = forward(inputs)
        if output.device not in generators:
            generators[output.device] = torch.Generator(output.device).manual_seed(seed)
        draws = torch.rand(output.shape, generator=generators[output.device], device=output.device) - 0.5
        wide = torch.float64 if output.dtype == torch.float32 else torch.float32
        return (output.to(wide) * (1 + draws.to(wide) * torch.finfo(output.dtype).eps)).to(output.dtype)

    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for layer in layers:  # not by a hook, which a head that is called without its hooks would not run
        vars(layer)["forward"] = partial(off, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]
