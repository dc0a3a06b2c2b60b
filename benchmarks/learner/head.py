"""The chunked head against the whole logits and their log-softmax in float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.end_to_end.model import SHAPE
from benchmarks.learner.clock import fastest, peak_bytes
from benchmarks.learner.figures import Figure
from rlhf.models.head import head_logprobs

TOKENS, VOCABULARY = 4096, 32_768
"""A micro-batch of the learner's default size."""


def figures(rounds: int) -> list[Figure]:
    torch.manual_seed(0)
    head = nn.Linear(SHAPE.hidden_size, VOCABULARY, bias=False)
    hidden = torch.randn(TOKENS, SHAPE.hidden_size).requires_grad_()
    ids = torch.randint(VOCABULARY, (TOKENS,))

    def naive() -> tuple[Tensor, Tensor]:
        log_softmax = torch.log_softmax(head(hidden).float(), -1)
        entropies = -(log_softmax.detach().exp() * log_softmax.detach()).sum(-1)
        return log_softmax.gather(1, ids[:, None])[:, 0], entropies

    def chunked() -> tuple[Tensor, Tensor]:
        return head_logprobs(head, hidden, ids, vocabulary=VOCABULARY)

    sides = [_both_passes(forward, head, hidden) for forward in (chunked, naive)]
    memory = [peak_bytes(side) for side in sides]
    seconds = fastest(rounds, *sides)
    error = _difference(*(side() for side in sides))
    sizes, times = (
        " against ".join(pair) for pair in ([f"{m / 2**20:.0f} MiB" for m in memory], [f"{s:.2f} s" for s in seconds])
    )
    return [
        Figure(name="head_memory", value=memory[0] / memory[1], bound=1 / 8, at_most=True, how=sizes),
        Figure(name="head_time", value=seconds[0] / seconds[1], bound=1.5, at_most=True, how=times),
        Figure(
            name="head_gradient_error",
            value=error,
            bound=1e-6,
            at_most=True,
            how="largest ‖Δg‖/‖g‖ of weights and hidden states",
        ),
    ]


def _both_passes(
    forward: Callable[[], tuple[Tensor, Tensor]], head: nn.Linear, hidden: Tensor
) -> Callable[[], list[Tensor]]:
    """Forward and backward of a weighted sum of log-probs; returns the gradients."""
    weights = torch.linspace(-1, 1, TOKENS)
    return lambda: list(torch.autograd.grad((forward()[0] * weights).sum(), [hidden, head.weight]))


def _difference(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))
