"""Arrays of a record as tensors, and gradients of what the library makes of them."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.goldens.records import Answer


def leaf(array: NDArray[Any]) -> Tensor:
    """A tensor that a gradient is asked of."""
    return torch.tensor(array).requires_grad_()


def tensor(array: NDArray[Any]) -> Tensor:
    return torch.tensor(array)


def gradient(value: Tensor, of: Tensor) -> NDArray[Any]:
    """The gradient of the sum of `value`; zeros where it does not depend on `of`."""
    (found,) = torch.autograd.grad(value.sum(), of, retain_graph=True, materialize_grads=True)
    return found.numpy()


def numbers(value: Tensor) -> NDArray[Any]:
    return value.detach().numpy()


def with_gradient(value: Tensor, of: Tensor, *, name: str = "loss", **tolerances: float) -> dict[str, Answer]:
    """The answers `name` and `grad` for a loss."""
    return {name: Answer(numbers(value), **tolerances), "grad": Answer(gradient(value, of), **tolerances)}
