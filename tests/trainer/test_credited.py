"""What credit hands on to the losses and says of a batch, and whom an episode is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlhf.trainer.algorithms.credit import with_advantages
from rlhf.trainer.batching.batch import Batch, PerToken, build_batch
from rlhf.trainer.config import TrainerConfig
from rlhf.types import Group, Sample, Trajectory, Unscored
from tests.trainer.algorithms.test_credit import A, P, episode, episodes, group_of, scored, segment

PLAIN = {"normalize_by_std": False}


def two_episodes() -> list[Group]:
    return [group_of(episode(2.0, segment([P, A, A])), episode(1.0, segment([P, A])))]


def credited(**config: Any) -> tuple[Batch, dict[str, float], PerToken]:
    groups = two_episodes()
    before = scored(groups)
    trainer = TrainerConfig(**config)
    batch, metrics = with_advantages(before, trainer, trainer.kl.coefficient, 16)
    return batch, metrics, before.per_token


def test_what_the_ranks_said_goes_with_the_batch_to_its_losses() -> None:
    batch, metrics, scores = credited(advantage={"estimator": "gae", "lam": 1.0}, critic={})
    columns = batch.per_token
    for name in ("proximal", "reference", "values"):
        np.testing.assert_array_equal(getattr(columns, name), getattr(scores, name))
    assert columns.returns is not None
    assert columns.returns.dtype == columns.advantages.dtype == np.float32
    np.testing.assert_allclose(columns.returns, [2.0, 2.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(columns.advantages, columns.returns - scores.values, rtol=1e-6)
    returns, values = np.array([2.0, 2.0, 1.0]), np.float64(scores.values)
    assert metrics["critic/value_mean"] == pytest.approx(values.mean())
    assert metrics["critic/explained_variance"] == pytest.approx(1 - (returns - values).var() / returns.var())


def test_vapo_carries_the_outcome_by_the_length_and_teaches_the_critic_by_its_own_lambda() -> None:
    advantage = {"estimator": "gae", "lam": 1.0, "lam_length_alpha": 0.6}
    batch, _, scores = credited(advantage=advantage, critic={})
    first, second, alone = np.float64(scores.values)
    lam = 1 - 1 / (0.6 * 2)  # of two action tokens; of one alpha times the length is below 1, and lambda 0
    expected = [second - first + lam * (2 - second), 2 - second, 1 - alone]
    np.testing.assert_allclose(batch.per_token.advantages, expected, rtol=1e-6)
    np.testing.assert_allclose(batch.per_token.returns, [2.0, 2.0, 1.0], rtol=1e-6)


def test_equal_returns_leave_nothing_to_explain() -> None:
    groups = [group_of(episode(1.0, segment([P, A])), episode(1.0, segment([P, A])))]
    trainer = TrainerConfig(advantage={"estimator": "gae", "lam": 1.0}, critic={})
    _, metrics = with_advantages(scored(groups), trainer, 0.0, 16)
    assert "critic/explained_variance" not in metrics
    assert "critic/value_mean" in metrics


def test_without_a_critic_there_are_no_targets_and_nothing_to_say_of_values() -> None:
    groups = two_episodes()
    batch, metrics = with_advantages(build_batch(groups), TrainerConfig(), 0.0, 16)
    assert batch.per_token.returns is None
    assert metrics == {}


@pytest.mark.parametrize(
    ("kl", "shown"),
    [
        ({"coefficient": 0.1, "estimator": "k2"}, lambda d: d * d / 2),
        ({"coefficient": 0.1, "estimator": "k3"}, lambda d: math.exp(-d) - 1 + d),
        ({"coefficient": 0.0, "estimator": "k3"}, lambda d: d),
    ],
)
def test_the_divergence_that_is_steered_is_shown_and_else_the_plain_one(
    kl: dict[str, Any], shown: Callable[[float], float]
) -> None:
    _, metrics, scores = credited(kl=kl)
    distances = np.float64(scores.proximal) - np.float64(scores.reference)
    assert metrics["policy/kl_reference"] == pytest.approx(np.mean([shown(float(d)) for d in distances]), rel=1e-6)


def test_without_log_probs_of_a_reference_no_divergence_is_shown() -> None:
    groups = two_episodes()
    batch = scored(groups).with_columns(reference=None, values=None)
    assert with_advantages(batch, TrainerConfig(), 0.0, 16)[1] == {}


@pytest.mark.parametrize(
    ("estimator", "price"),
    [("k1", lambda d: d), ("k2", lambda d: d * d / 2), ("k3", lambda d: math.exp(-d) - 1 + d)],
)
def test_the_recipe_s_estimator_prices_the_divergence_in_the_reward(
    estimator: str, price: Callable[[float], float]
) -> None:
    kl = {"coefficient": 0.5, "place": "reward", "estimator": estimator}
    batch, _, scores = credited(advantage=PLAIN, kl=kl)
    first, second, other = (0.5 * price(float(d)) for d in np.float64(scores.proximal) - np.float64(scores.reference))
    half = ((2.0 - first - second) - (1.0 - other)) / 2
    np.testing.assert_allclose(batch.per_token.advantages, [half, half, -half], rtol=1e-6)


def test_kl_in_the_loss_is_no_price_in_the_reward() -> None:
    in_loss, _, _ = credited(advantage=PLAIN, kl={"coefficient": 0.5, "place": "loss"})
    free, _, _ = credited(advantage=PLAIN)
    in_reward, _, _ = credited(advantage=PLAIN, kl={"coefficient": 0.5, "place": "reward", "estimator": "k1"})
    np.testing.assert_array_equal(in_loss.per_token.advantages, free.per_token.advantages)
    assert not np.allclose(in_reward.per_token.advantages, free.per_token.advantages)


def test_the_same_role_in_the_same_group_is_compared() -> None:
    def role(sample: Sample, name: str) -> Sample:
        assert isinstance(sample.trajectory, Trajectory)
        return replace(sample, trajectory=replace(sample.trajectory, role=name))

    one, other = (episode(value, segment([P, A])) for value in (0.0, 1.0))
    found = episodes([group_of(role(one, "x"), role(other, "o"), role(one, "o"), role(other, "x")), group_of(one)])
    assert found.groups.tolist() == [0, 1, 1, 0, 2]


def test_a_baseline_is_repeated_for_every_sample_of_its_group() -> None:
    groups = [
        group_of(*[episode(1.0, segment([P, A]))] * 2, baseline=episode(0.25, segment([P, A]))),
        group_of(*[episode(1.0, segment([P, A]))] * 3, baseline=episode(-1.0, segment([P, A]))),
    ]
    found = episodes(groups)
    assert found.baselines is not None
    assert found.baselines.tolist() == [0.25, 0.25, -1.0, -1.0, -1.0]
    assert episodes([*groups, group_of(episode(1.0, segment([P, A])))]).baselines is None


def test_a_baseline_is_a_double_and_no_number_where_nothing_scored_it() -> None:
    unscored = Sample(trajectory=episode(0, segment([P, A])).trajectory, score=Unscored(kind="timeout"))
    groups = [group_of(episode(1.0, segment([P, A])), baseline=unscored)]
    np.testing.assert_array_equal(episodes(groups).baselines, [np.nan])
    whole = episodes([group_of(episode(1.0, segment([P, A])), baseline=episode(3, segment([P, A])))])
    assert whole.baselines is not None
    assert whole.baselines.dtype == np.float64
