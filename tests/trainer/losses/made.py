"""A batch of ragged rows with gaps and an empty row, and tools to compare with plain Python."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rlhf.trainer.losses import Actions

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


def sequences_of(mask: Tensor) -> Tensor:
    """The number of each token's sequence, `[A]`, where every row of `mask` `bool [B, T]` with a token is one."""
    return torch.nonzero(mask)[:, 0].unique(return_inverse=True)[1]


def flat(mask: Tensor, logprobs: Tensor, old: Tensor, advantages: Tensor, **columns: Tensor) -> Actions:
    """The tokens of rows `[B, T]` as a loss reads them."""
    nothing = torch.zeros(int(mask.sum()), dtype=logprobs.dtype)
    given = {"logprobs": logprobs, "proximal_logprobs": old, "advantages": advantages} | columns
    chosen = {name: column[mask] for name, column in given.items()}
    rest = dict.fromkeys(("behaviour_logprobs", "entropies", "loss_weights"), nothing)
    return Actions(**(rest | chosen), sequences=sequences_of(mask))


def spread(per_token: Tensor, mask: Tensor) -> Tensor:
    """`[A]` as rows `[B, T]`, 0 outside the mask."""
    return torch.zeros(mask.shape, dtype=per_token.dtype).index_put((mask,), per_token)


def actions(logprobs: Tensor = NEW) -> Actions:
    return flat(MASK, logprobs, OLD, ADVANTAGES)


def tokens() -> list[tuple[int, int]]:
    """The places of the mask."""
    return [(row, column) for row in range(ROWS) for column in range(LENGTH) if MASK[row, column]]


def table(of_token: Callable[[int, int], float]) -> Tensor:
    """A function of a token's place, evaluated one by one in float64: `[A]`."""
    return torch.tensor([of_token(*place) for place in tokens()], dtype=torch.float64)


def assert_equal(ours: Tensor, expected: Tensor) -> None:
    """Equal to the precision of float64. Rows `[B, T]` are compared on the mask."""
    found = ours.detach()[MASK] if ours.dim() == 2 else ours.detach()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
