"""Measures how much rounding alone changes a model's output, by a forward pass with other rounding in every linear
layer: how far another implementation of the model, which adds in another order, may differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

SEED = 0
"""Seed of the random numbers, so that a measurement can be repeated."""
DRAWS = 1_048_573
"""Random numbers that are drawn once and read over and over, since drawing one for each of a head's logits takes a CPU
longer than the head. A prime, so that rows do not repeat in step with them."""


class Errors:
    """Random relative errors of up to half a unit in the last place, the next ones at every call."""

    def __init__(self, seed: int) -> None:
        self._draws = torch.rand(DRAWS, generator=torch.Generator().manual_seed(seed)) - 0.5
        self._known: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._place = 0

    def put_on(self, output: Tensor) -> Tensor:
        """`output` with an error on every element, and rounded again."""
        wide = output.to(torch.float64 if output.dtype == torch.float32 else torch.float32).contiguous()
        known = (output.dtype, output.device)
        if known not in self._known:
            self._known[known] = self._draws.to(wide) * torch.finfo(output.dtype).eps
        flat, done = wide.view(-1), 0
        while done < len(flat):
            errors = self._known[known][self._place : self._place + len(flat) - done]
            piece = flat[done : done + len(errors)]
            piece.addcmul_(piece, errors)
            done, self._place = done + len(errors), (self._place + len(errors)) % DRAWS
        return wide.to(output.dtype)


@contextmanager
def rounded(model: nn.Module, seed: int = SEED) -> Iterator[None]:
    """Change every output of `model`'s linear layers at random by up to half a unit in the last place."""
    errors = Errors(seed)

    def off(forward: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        return errors.put_on(forward(inputs))

    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for layer in layers:  # not by a hook, which a head that is called without its hooks would not run
        vars(layer)["forward"] = partial(off, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]
