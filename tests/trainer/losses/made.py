"""A batch of ragged rows with gaps and an empty row, and tools to compare with plain Python."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rlhf.trainer.losses import Actions

Floats = list[list[float]]
ROWS, LENGTH = 6, 9
_RNG = np.random.default_rng(5)
MASK = torch.tensor(
    [
        [1, 1, 1, 1, 1, 1, 1, 1, 1],
        [1, 0, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0, 0],
    ],
    dtype=torch.bool,
)


def random(mean: float, deviation: float) -> Tensor:
    return torch.tensor(_RNG.normal(mean, deviation, (ROWS, LENGTH)))


NEW = random(-2, 0.5)
OLD = NEW + random(0, 0.5)
BEHAVIOUR = OLD + random(0, 0.4)
REFERENCE = NEW + random(0, 0.5)
ADVANTAGES = random(0, 1)


def actions(logprobs: Tensor = NEW, rows: slice = slice(None)) -> Actions:
    return Actions(logprobs[rows], OLD[rows], ADVANTAGES[rows], MASK[rows])


def tokens() -> list[tuple[int, int]]:
    """The places of the mask."""
    return [(row, column) for row in range(ROWS) for column in range(LENGTH) if MASK[row, column]]


def table(of_token: Callable[[int, int], float]) -> Tensor:
    """A function of a token's place, evaluated one by one in float64; 0 outside the mask."""
    result = torch.zeros(ROWS, LENGTH, dtype=torch.float64)
    for row, column in tokens():
        result[row, column] = of_token(row, column)
    return result


def assert_equal(ours: Tensor, expected: Tensor) -> None:
    """Equal on the mask to the precision of float64."""
    torch.testing.assert_close(ours.detach()[MASK], expected[MASK], rtol=1e-12, atol=1e-12)
