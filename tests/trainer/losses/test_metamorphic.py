"""What may be done to a batch without changing a loss, for every loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rlhf.trainer.credit.kl import kl_in_loss
from rlhf.trainer.losses import Actions, LossMetrics, value_loss
from rlhf.trainer.losses.off_policy import corrected as by_weights
from rlhf.trainer.losses.off_policy import masked_ratios, mismatch, ratio, truncated
from rlhf.trainer.losses.policy import cispo, gspo, policy_gradient, ppo, sapo
from tests.trainer.losses.made import ADVANTAGES, BEHAVIOUR, MASK, NEW, OLD, REFERENCE, ROWS, flat, sequences_of, spread
from tests.trainer.losses.summed import divisor, summed

Columns = dict[str, Tensor]
Loss = Callable[[Columns], tuple[Tensor, LossMetrics]]


def batch() -> Columns:
    return {"new": NEW, "old": OLD, "behaviour": BEHAVIOUR, "reference": REFERENCE, "advantages": ADVANTAGES}


def acts(c: Columns) -> Actions:
    return flat(c["mask"], c["new"], c["old"], c["advantages"])


def tokens(c: Columns, *names: str) -> list[Tensor]:
    return [c[name][c["mask"]] for name in names]


def corrected(level: str, bounded: Callable[..., Tensor]) -> Loss:
    def loss(c: Columns) -> tuple[Tensor, LossMetrics]:
        weights = bounded(ratio(*tokens(c, "old", "behaviour"), sequences_of(c["mask"]), level), low=0.5, high=2.0)
        per_token, seen = ppo(acts(c), clip_low=0.2, clip_high=0.28)
        return by_weights(per_token, weights), seen

    return loss


def penalty(estimator: str, exact: bool) -> Loss:
    def loss(c: Columns) -> tuple[Tensor, LossMetrics]:
        seen = mismatch(*tokens(c, "new", "behaviour"), 2.0)
        new, reference = tokens(c, "new", "reference")
        return kl_in_loss(new - reference, estimator, exact_gradient=exact), seen

    return loss


LOSSES: dict[str, Loss] = {
    "policy gradient": lambda c: policy_gradient(acts(c)),
    "ppo": lambda c: ppo(acts(c), clip_low=0.2, clip_high=0.28, dual_clip=1.5),
    "gspo": lambda c: gspo(acts(c), clip_low=0.1, clip_high=0.1),
    "cispo": lambda c: cispo(acts(c), clip_low=0.3, clip_high=0.4),
    "sapo": lambda c: sapo(acts(c), temperature_positive=1.0, temperature_negative=1.05),
    **{f"tis {level}": corrected(level, truncated) for level in ("token", "sequence", "geometric")},
    **{f"masked {level}": corrected(level, masked_ratios) for level in ("token", "sequence", "geometric")},
    **{f"kl {name} {exact}": penalty(name, exact) for name in ("k1", "k2", "k3") for exact in (False, True)},
    "value": lambda c: (value_loss(*tokens(c, "new", "old", "advantages"), 0.2), LossMetrics(int(c["mask"].sum()))),
}
AGGREGATIONS = ("token_mean", "sequence_mean", "sequence_sum", "constant")
everywhere = pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
aggregations = pytest.mark.parametrize("aggregation", AGGREGATIONS)


def gradient(
    loss: Loss, columns: Columns, mask: Tensor, aggregation: str, pieces: list[list[int]]
) -> tuple[Tensor, list[LossMetrics]]:
    """The gradient, and the metrics of each piece, when the rows of a batch are processed piece by piece."""
    leaf = columns["new"].clone().requires_grad_()
    whole, seen = divisor(mask, aggregation, 7.0), []
    for rows in pieces:
        piece = {name: column[rows] for name, column in columns.items()} | {"new": leaf[rows], "mask": mask[rows]}
        per_token, metrics = loss(piece)
        summed(spread(per_token, mask[rows]), mask[rows], aggregation, whole, 7.0).backward()
        seen.append(metrics)
    return leaf.grad, seen


def total(metrics: list[LossMetrics]) -> dict[str, float]:
    names = metrics[0].sums
    sums = {name: float(sum(each.sums[name] for each in metrics)) for name in names}
    maxima = {name: max(float(each.maxima[name]) for each in metrics) for name in metrics[0].maxima}
    return sums | maxima | {"count": float(sum(each.count for each in metrics))}


def close(ours: Tensor, expected: Tensor) -> bool:
    return bool((ours - expected).norm() <= 1e-6 * expected.norm())


@everywhere
@aggregations
def test_cutting_a_batch_anywhere_leaves_gradients_and_metrics(loss: Loss, aggregation: str) -> None:
    expected, whole = gradient(loss, batch(), MASK, aggregation, [list(range(ROWS))])
    assert expected.norm() > 0
    for pieces in ([[0, 1], [2, 3, 4, 5]], [[row] for row in range(ROWS)]):
        found, seen = gradient(loss, batch(), MASK, aggregation, pieces)
        assert close(found, expected)
        assert total(seen) == pytest.approx(total(whole), rel=1e-6)


@everywhere
@aggregations
def test_environment_tokens_and_the_order_of_samples_change_nothing(loss: Loss, aggregation: str) -> None:
    expected, whole = gradient(loss, batch(), MASK, aggregation, [list(range(ROWS))])
    order = [3, 0, 5, 1, 4, 2]
    inserted = [0, 1, 2, -1, -1, 3, 4, 5, 6, -1, 7, 8]
    places = torch.tensor([place for place, column in enumerate(inserted) if column >= 0])
    longer = {name: column[order][:, inserted] for name, column in batch().items()}
    mask = MASK[order][:, inserted] & (torch.tensor(inserted) >= 0)
    found, seen = gradient(loss, longer, mask, aggregation, [list(range(ROWS))])
    assert close(found[:, places], expected[order])
    assert total(seen) == pytest.approx(total(whole), rel=1e-6)
