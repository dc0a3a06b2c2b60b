"""From played groups and the ranks' scores to advantages: every estimator, what is told, and what is not sound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlhf.errors import NotFinite
from rlhf.trainer.batching.batch import Batch, build_batch, build_minibatches
from rlhf.trainer.config import OverlongConfig, TrainerConfig
from rlhf.trainer.credit.advantages import forward_columns, with_advantages
from rlhf.trainer.credit.registry import ESTIMATORS
from rlhf.trainer.credit.rewards import overlong_penalty
from rlhf.types import (
    EpisodeStatus,
    Group,
    Sample,
    Scored,
    Segment,
    Task,
    Ticket,
    TokenKind,
    Trajectory,
    Turn,
    Unscored,
)
from tests.trainer.made import without_score

P, A, E = TokenKind.PROMPT, TokenKind.ACTION, TokenKind.ENV
PRICED = {"coefficient": 0.1, "place": "reward", "estimator": "k1"}
PLAIN = {"normalize_by_std": False}


def segment(kinds: Sequence[TokenKind], *turns: Turn) -> Segment:
    array = np.array(kinds, np.int8)
    acted = array == A
    return Segment(
        token_ids=np.arange(5, 5 + len(array), dtype=np.int32),
        kinds=array,
        behaviour_logprobs=np.where(acted, -1.0 - np.cumsum(acted) / 10, 0).astype(np.float32),
        versions=np.where(acted, 0, -1).astype(np.int32),
        turns=turns,
    )


def episode(value: float, *segments: Segment, status: EpisodeStatus = EpisodeStatus.TERMINATED) -> Sample:
    task = Task(id="t", messages=())
    return Sample(trajectory=Trajectory(task=task, segments=segments, status=status), score=Scored(value=value))


def by_turns(sample: Sample) -> Sample:
    """The sample, its score that of its turns alone."""
    assert isinstance(sample.score, Scored)
    return replace(sample, score=replace(sample.score, turn_weight=1.0, only_turns=True))


def group_of(*samples: Sample, baseline: Sample | None = None) -> Group:
    return Group(
        ticket=Ticket(ordinal=0, version=0), task=Task(id="t", messages=()), samples=samples, baseline=baseline
    )


def config_of(estimator: str) -> TrainerConfig:
    needs = ESTIMATORS[estimator].needs
    config = {"advantage": {"estimator": estimator, "gamma": 0.9}}
    if needs.values:
        config["critic"] = {}
    if estimator != "distillation":
        config["kl"] = PRICED
    return TrainerConfig(**config)


def scored(groups: Sequence[Group]) -> Batch:
    """A batch with what ranks might compute: numbers that depend on a token's place in its episode alone."""
    batch = build_batch(groups)
    lengths = [trajectory.action_tokens for group in groups for _, trajectory, _ in group.trainable]
    places = np.concatenate([np.arange(n) for n in lengths]).astype(np.float32)
    learner, reference = -1 - places / 7, -1.2 - places / 11
    filled = replace(batch, proximal_logprobs=learner, reference_logprobs=reference, values=np.sin(places))
    return replace(filled, last_values=np.full(len(lengths), 0.5, np.float32))


def advantages_of(estimator: str, groups: Sequence[Group]) -> list[np.ndarray]:
    config = config_of(estimator)
    batch, _ = with_advantages(scored(groups), config, config.kl.coefficient)
    return batch.per_sample(batch.advantages)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_an_environment_wrote_between_actions_changes_no_advantage(estimator: str) -> None:
    turns = Turn(start=2, stop=4), Turn(start=4, stop=6)
    plain = segment([P, P, A, A, A, A], *turns)
    with_tool = segment([P, P, A, A, E, E, E, A, A, E], Turn(start=2, stop=4), Turn(start=7, stop=9))
    others = episode(0.3, segment([P, P, A])), episode(-1.0, segment([P, P, A, A]))
    alone = group_of(episode(1.0, plain), *others, baseline=episode(0.2, plain))
    talking = group_of(episode(1.0, with_tool), *others, baseline=episode(0.2, plain))
    for one, other in zip(advantages_of(estimator, [alone]), advantages_of(estimator, [talking]), strict=True):
        np.testing.assert_array_equal(one, other)
    assert any(values.any() for values in advantages_of(estimator, [alone]))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_ends_the_update_by_name(estimator: str, value: float) -> None:
    group = group_of(
        episode(1.0, segment([P, A])), episode(value, segment([P, A])), baseline=episode(0, segment([P, A]))
    )
    with pytest.raises(NotFinite, match="reward of an episode of task t"):
        advantages_of(estimator, [group])


def no_number(batch: Batch) -> np.ndarray:
    """An estimator of one's own that is mistaken."""
    return np.full(batch.tokens, np.nan)


def test_advantages_that_are_no_numbers_end_the_update_by_name() -> None:
    config = TrainerConfig(advantage={"estimator": f"{__name__}:no_number"})
    groups = [group_of(episode(1.0, segment([P, A])), episode(0.0, segment([P, A])))]
    with pytest.raises(NotFinite, match="no_number"):
        with_advantages(build_batch(groups), config, 0.0)


@pytest.mark.parametrize("estimator", [name for name, piece in ESTIMATORS.items() if piece.needs.siblings])
def test_one_survivor_has_nothing_to_be_compared_with(estimator: str) -> None:
    config = TrainerConfig(advantage={"estimator": estimator})
    groups = [group_of(episode(3.0, segment([P, A, A])))]
    batch, _ = with_advantages(build_batch(groups), config, 0.0)
    assert not batch.advantages.any()


def test_a_group_without_survivors_is_no_part_of_the_batch() -> None:
    groups = [
        without_score(group_of(episode(0, segment([P, A]))), 0),
        group_of(episode(1, segment([P, A])), episode(0, segment([P, A]))),
    ]
    batch, _ = with_advantages(build_batch(groups), TrainerConfig(), 0.0)
    assert batch.samples == ((0, 0), (0, 1))
    (steps,) = build_minibatches(batch, minibatches=2, ranks=1, tokens_per_microbatch=64)
    assert len(steps) == 1


@pytest.mark.parametrize("kinds", [[P, P], [P, E, E, E]])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_an_episode_without_an_action_is_compared_with_and_trains_nothing(
    estimator: str, kinds: list[TokenKind]
) -> None:
    silent = episode(-1.0, segment(kinds))
    group = group_of(silent, episode(1.0, segment([P, A, A])), baseline=episode(0.5, segment([P, A])))
    nothing, something = advantages_of(estimator, [group])
    assert nothing.shape == (0,)
    assert np.isfinite(something).all()
    (steps,) = build_minibatches(build_batch([group]), minibatches=1, ranks=1, tokens_per_microbatch=64)
    assert (steps[0][0].denominator, steps[0][0].step_samples) == (2.0, 1)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_batch_without_any_action_has_no_step(estimator: str) -> None:
    groups = [group_of(episode(1.0, segment([P, E])), episode(0.0, segment([P, E])))]
    config = config_of(estimator)
    batch, _ = with_advantages(build_batch(groups), config, config.kl.coefficient)
    assert build_minibatches(batch, minibatches=1, ranks=1, tokens_per_microbatch=64) == [()]


def test_only_episodes_cut_off_and_rewarded_by_their_turns_alone_bootstrap() -> None:
    """The outcome of a reply that was cut off is paid at the cut: its value behind that would be paid twice."""
    paid = segment([P, A, A], Turn(start=1, stop=3, reward=0.1))
    ended, cut_off = episode(0.1, paid), episode(0.1, paid, status=EpisodeStatus.TRUNCATED)
    judged = episode(0.0, segment([P, A, A]), status=EpisodeStatus.TRUNCATED)
    both = replace(cut_off, score=Scored(value=1.1, turn_weight=1.0))
    found = scored([group_of(by_turns(ended), judged, both, by_turns(cut_off))])
    assert found.bootstrap.tolist() == [0.0, 0.0, 0.0, 0.5]


@pytest.mark.parametrize("nothing", [None, 0.0])
def test_a_bootstrap_does_not_depend_on_how_an_environment_writes_that_it_gave_nothing(nothing: float | None) -> None:
    silent = segment([P, A, E, A], Turn(start=1, stop=2, reward=nothing), Turn(start=3, stop=4, reward=nothing))
    found = scored([group_of(by_turns(episode(0.0, silent, status=EpisodeStatus.TRUNCATED)))])
    assert found.bootstrap.tolist() == [0.5]


def test_rewards_of_turns_come_at_their_last_actions_and_the_rest_of_the_outcome_at_the_episode_s() -> None:
    two = segment([P, A, A, E, A], Turn(start=1, stop=3, reward=0.25), Turn(start=4, stop=5, reward=0.5))
    third = segment([P, A], Turn(start=1, stop=2))
    score = Scored(value=2.75, turn_weight=1.0)
    found = scored([group_of(replace(episode(0, two, third), score=score))])
    assert found.rewards.tolist() == [0.0, 0.25, 0.5, 2.0]
    assert found.turns.tolist() == [0, 0, 1, 2]
    assert found.turns.dtype == np.int64


def test_turns_are_counted_over_as_many_contexts_as_an_episode_has() -> None:
    parts = [segment([P, A, A], Turn(start=1, stop=3, reward=reward)) for reward in (1.0, 2.0, 3.0)]
    one, silent = by_turns(episode(6.0, *parts)), by_turns(episode(0.0, segment([P, E])))
    found = scored([group_of(one, one, silent)])
    assert found.turns.tolist() == [0, 0, 1, 1, 2, 2] * 2
    assert found.rewards.tolist() == [0.0, 1.0, 0.0, 2.0, 0.0, 3.0] * 2


def test_groups_without_an_episode_to_train_are_no_rows() -> None:
    groups = [without_score(group_of(episode(0, segment([P, A]))), 0)]
    found = build_batch(groups)
    assert (found.mask.shape, found.rewards.shape) == ((0, 0), (0,))
    assert (found.lengths.dtype, found.groups.dtype) == (np.int64, np.int64)


@pytest.mark.parametrize(
    ("weight", "at_the_turns"), [(1.0, [0.0, 0.25, 0.5]), (-2.0, [0.0, -0.5, -1.0]), (0.0, [0.0, 0.0, 0.0])]
)
@pytest.mark.parametrize("rest", [0.0, 3.0])
def test_what_turns_are_paid_has_its_weight_and_the_whole_is_the_outcome(
    weight: float, at_the_turns: list[float], rest: float
) -> None:
    two = segment([P, A, A, E, A], Turn(start=1, stop=3, reward=0.25), Turn(start=4, stop=5, reward=0.5))
    score = Scored(value=weight * 0.75 + rest, turn_weight=weight)
    found = scored([group_of(replace(episode(0, two), score=score))])
    assert found.rewards.tolist() == [*at_the_turns[:2], at_the_turns[2] + rest]
    assert found.rewards.sum() == found.outcomes[0] == score.value


def test_what_a_turn_without_an_action_was_given_is_paid_at_the_end() -> None:
    turns = Turn(start=1, stop=2, reward=0.25), Turn(start=3, stop=3, reward=0.5)
    found = scored([group_of(by_turns(episode(0.75, segment([P, A, E], *turns))))])
    assert found.rewards.tolist() == [0.75]
    between = Turn(start=1, stop=2), Turn(start=2, stop=3, reward=0.5), Turn(start=3, stop=4)
    found = scored([group_of(by_turns(episode(0.5, segment([P, A, E, A], *between))))])
    assert found.rewards.tolist() == [0.0, 0.5]


def test_kl_in_the_reward_is_taken_from_every_token_and_from_the_outcome() -> None:
    groups = [group_of(episode(2.0, segment([P, A, A])), episode(1.0, segment([P, A])))]
    scores = scored(groups)
    kl = scores.proximal_logprobs - scores.reference_logprobs
    found, _ = with_advantages(scores, TrainerConfig(advantage=PLAIN, kl=PRICED), 0.5)
    np.testing.assert_allclose(found.rewards, [-0.5 * kl[0], 2 - 0.5 * kl[1], 1 - 0.5 * kl[2]], rtol=1e-6)
    np.testing.assert_allclose(found.outcomes, [2 - 0.5 * (kl[0] + kl[1]), 1 - 0.5 * kl[2]], rtol=1e-6)


@pytest.mark.parametrize("rewards", [(1.0, 1.0, 1.0), (1.0, 0.0, 0.5)])
@pytest.mark.parametrize("estimator", ["group_relative", "best_of_group"])
def test_normalised_scores_lose_the_kl_of_every_token_and_the_deviation_does_not_divide_it(
    estimator: str, rewards: tuple[float, ...]
) -> None:
    beta, lengths = 0.001, (2, 1, 3)
    groups = [group_of(*(episode(r, segment([P, *[A] * n])) for r, n in zip(rewards, lengths, strict=True)))]
    config = {"advantage": {"estimator": estimator}, "kl": {**PRICED, "coefficient": beta}}
    before = scored(groups)
    batch, _ = with_advantages(before, TrainerConfig(**config), beta)
    plain, _ = with_advantages(before, TrainerConfig(advantage=config["advantage"]), 0.0)
    columns = before
    kls = np.split(columns.proximal_logprobs - columns.reference_logprobs, np.cumsum(lengths)[:-1])
    expected = [
        of_scores[0] - beta * kl[place:].sum()
        for of_scores, kl in zip(plain.per_sample(plain.advantages), kls, strict=True)
        for place in range(len(kl))
    ]
    np.testing.assert_allclose(batch.advantages, expected, rtol=1e-5)


def test_long_replies_are_priced_and_truncated_ones_left_out_of_the_loss_where_the_recipe_says() -> None:
    long = episode(1.0, segment([P, *[A] * 8]), status=EpisodeStatus.TRUNCATED)
    groups = [group_of(episode(1.0, segment([P, A, A])), long)]
    config = TrainerConfig(overlong=OverlongConfig(buffer_tokens=4, penalty_factor=0.5, mask_truncated=True))
    batch = build_batch(groups, overlong=config.overlong, max_tokens=8)
    filled, _ = with_advantages(batch, config, 0.0)
    short, cut_off = filled.per_sample(filled.advantages)
    assert short[0] == pytest.approx(-cut_off[0])
    assert short[0] > 0
    assert [weights.sum() for weights in filled.per_sample(filled.loss_weights)] == [2.0, 0.0]
    (steps,) = build_minibatches(filled, minibatches=1, ranks=1, tokens_per_microbatch=64)
    assert steps[0][0].denominator == 2.0


def test_a_reply_beyond_the_buffer_pays_the_recipe_s_factor() -> None:
    overlong = OverlongConfig(buffer_tokens=4, penalty_factor=0.5)
    assert overlong_penalty(np.array([2, 6, 8, 9]), overlong, 8).tolist() == [0.0, -0.25, -0.5, -0.5]


@pytest.mark.parametrize(
    ("aggregation", "denominator"), [("token_mean", 5), ("sequence_mean", 2), ("sequence_sum", 2), ("constant", 20)]
)
def test_the_denominator_is_that_of_the_aggregation(aggregation: str, denominator: float) -> None:
    groups = [group_of(episode(1.0, segment([P, A, A])), episode(0.0, segment([P, A, E, A, A])))]
    batch = build_batch(groups, aggregation=aggregation)
    (steps,) = build_minibatches(
        batch, minibatches=1, ranks=1, tokens_per_microbatch=64, aggregation=aggregation, constant_tokens=10
    )
    assert steps[0][0].denominator == denominator
    assert [w.sum() for w in batch.per_sample(batch.loss_weights)] == pytest.approx(
        [1, 1] if aggregation == "sequence_mean" else [2, 3]
    )


def test_the_ranks_are_asked_only_for_what_the_recipe_reads() -> None:
    asked: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
        ({}, ()),
        ({"proximal_logprobs": "recomputed"}, ()),
        ({"minibatches": 2, "epochs": 2}, ()),
        ({"proximal_logprobs": "recomputed", "epochs": 2}, ("proximal_logprobs",)),
        ({"proximal_logprobs": "recomputed", "minibatches": 2}, ("proximal_logprobs",)),
        ({"kl": {"coefficient": 0.1}}, ("reference_logprobs",)),
        ({"kl": {"coefficient": 0.1, "place": "reward"}}, ("proximal_logprobs", "reference_logprobs")),
        ({"kl": {"coefficient": 0.0, "place": "reward"}}, ()),
        ({"advantage": {"estimator": "gae"}, "critic": {}}, ("values",)),
    )
    for config, columns in asked:
        assert forward_columns(TrainerConfig(**config)) == columns


def two_episodes() -> list[Group]:
    return [group_of(episode(2.0, segment([P, A, A])), episode(1.0, segment([P, A])))]


def credited(**config: Any) -> tuple[Batch, dict[str, float], Batch]:
    groups = two_episodes()
    before = scored(groups)
    trainer = TrainerConfig(**config)
    batch, metrics = with_advantages(before, trainer, trainer.kl.coefficient)
    return batch, metrics, before


def test_what_the_ranks_said_goes_with_the_batch_to_its_losses() -> None:
    batch, metrics, scores = credited(advantage={"estimator": "gae", "lam": 1.0}, critic={})
    columns = batch
    for name in ("proximal_logprobs", "reference_logprobs", "values"):
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
    np.testing.assert_allclose(batch.advantages, expected, rtol=1e-6)
    np.testing.assert_allclose(batch.returns, [2.0, 2.0, 1.0], rtol=1e-6)


def test_equal_returns_leave_nothing_to_explain() -> None:
    groups = [group_of(episode(1.0, segment([P, A])), episode(1.0, segment([P, A])))]
    trainer = TrainerConfig(advantage={"estimator": "gae", "lam": 1.0}, critic={})
    _, metrics = with_advantages(scored(groups), trainer, 0.0)
    assert "critic/explained_variance" not in metrics
    assert "critic/value_mean" in metrics


def test_without_a_critic_there_are_no_targets_and_nothing_to_say_of_values() -> None:
    groups = two_episodes()
    batch, metrics = with_advantages(build_batch(groups), TrainerConfig(), 0.0)
    assert batch.returns is None
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
    distances = np.float64(scores.proximal_logprobs) - np.float64(scores.reference_logprobs)
    assert metrics["policy/kl_reference"] == pytest.approx(np.mean([shown(float(d)) for d in distances]), rel=1e-6)


def test_without_log_probs_of_a_reference_no_divergence_is_shown() -> None:
    groups = two_episodes()
    batch = replace(scored(groups), reference_logprobs=None, values=None)
    assert with_advantages(batch, TrainerConfig(), 0.0)[1] == {}


@pytest.mark.parametrize(
    ("estimator", "price"), [("k1", lambda d: d), ("k2", lambda d: d * d / 2), ("k3", lambda d: math.exp(-d) - 1 + d)]
)
def test_the_recipe_s_estimator_prices_the_divergence_in_the_reward(
    estimator: str, price: Callable[[float], float]
) -> None:
    kl = {"coefficient": 0.5, "place": "reward", "estimator": estimator}
    batch, _, scores = credited(advantage=PLAIN, kl=kl)
    distances = np.float64(scores.proximal_logprobs) - np.float64(scores.reference_logprobs)
    first, second, other = (0.5 * price(float(d)) for d in distances)
    half = ((2.0 - first - second) - (1.0 - other)) / 2
    np.testing.assert_allclose(batch.advantages, [half, half, -half], rtol=1e-6)


def test_kl_in_the_loss_is_no_price_in_the_reward() -> None:
    in_loss, _, _ = credited(advantage=PLAIN, kl={"coefficient": 0.5, "place": "loss"})
    free, _, _ = credited(advantage=PLAIN)
    in_reward, _, _ = credited(advantage=PLAIN, kl={"coefficient": 0.5, "place": "reward", "estimator": "k1"})
    np.testing.assert_array_equal(in_loss.advantages, free.advantages)
    assert not np.allclose(in_reward.advantages, free.advantages)


def test_the_same_role_in_the_same_group_is_compared() -> None:
    def role(sample: Sample, name: str) -> Sample:
        assert isinstance(sample.trajectory, Trajectory)
        return replace(sample, trajectory=replace(sample.trajectory, role=name))

    one, other = (episode(value, segment([P, A])) for value in (0.0, 1.0))
    found = scored([group_of(role(one, "x"), role(other, "o"), role(one, "o"), role(other, "x")), group_of(one)])
    assert found.groups.tolist() == [0, 1, 1, 0, 2]


def test_a_baseline_is_repeated_for_every_sample_of_its_group() -> None:
    groups = [
        group_of(*[episode(1.0, segment([P, A]))] * 2, baseline=episode(0.25, segment([P, A]))),
        group_of(*[episode(1.0, segment([P, A]))] * 3, baseline=episode(-1.0, segment([P, A]))),
    ]
    found = scored(groups)
    assert found.baselines is not None
    assert found.baselines.tolist() == [0.25, 0.25, -1.0, -1.0, -1.0]
    assert scored([*groups, group_of(episode(1.0, segment([P, A])))]).baselines is None


def test_a_baseline_is_a_double_and_no_number_where_nothing_scored_it() -> None:
    unscored = Sample(trajectory=episode(0, segment([P, A])).trajectory, score=Unscored(kind="timeout"))
    groups = [group_of(episode(1.0, segment([P, A])), baseline=unscored)]
    np.testing.assert_array_equal(scored(groups).baselines, [np.nan])
    whole = scored([group_of(episode(1.0, segment([P, A])), baseline=episode(3, segment([P, A])))])
    assert whole.baselines is not None
    assert whole.baselines.dtype == np.float64
