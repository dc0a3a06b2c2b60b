import numpy as np
import pytest

from rlhf.trainer.rank_answers import (
    RankAnswer,
    effective_sample_size,
    reduce_metrics,
    scatter,
    with_effective_sample_size,
)


def answer(total: float, count: float, largest: float, places: list[int]) -> RankAnswer:
    return RankAnswer(
        sums={"policy/entropy": (total, count)},
        maxima={"policy/ratio_max": largest},
        steps={"optimizer/grad_norm": (1.0, 3.0)},
        places=np.array(places, np.int64),
        proximal_logprobs=-np.array(places, np.float32),
        entropies=np.array(places, np.float32) / np.float32(2),
    )


def test_means_are_over_all_tokens_and_not_over_ranks() -> None:
    metrics = reduce_metrics([answer(6.0, 3.0, 1.5, []), answer(1.0, 1.0, 4.0, [])])
    assert metrics == {
        "policy/entropy": 7 / 4,
        "policy/ratio_max": 4.0,
        "optimizer/grad_norm": 2.0,
        "optimizer/steps": 2.0,
    }


def test_a_rank_without_tokens_takes_no_part_in_a_mean() -> None:
    assert "policy/entropy" not in reduce_metrics([answer(0.0, 0.0, 0.0, [])])


def test_no_answers_are_no_metrics() -> None:
    assert reduce_metrics([]) == {}


def test_columns_of_tokens_find_their_places_again() -> None:
    answers = [answer(0, 1, 0, [3, 0]), answer(0, 1, 0, [1, 2])]
    assert scatter(answers, 4, lambda one: one.proximal_logprobs).tolist() == [0, -1, -2, -3]
    assert scatter(answers, 4, lambda one: one.entropies).tolist() == [0, 0.5, 1, 1.5]


def test_the_effective_sample_size_is_the_share_that_unequal_weights_leave() -> None:
    weights = np.array([2.0, 1.0, 0.5, 0.0])
    metrics = {
        "mismatch/weight_mean": weights.mean(),
        "mismatch/weight_squared": (weights**2).mean(),
        "optimizer/loss": 1.0,
    }
    expected = weights.sum() ** 2 / (4 * (weights**2).sum())
    assert with_effective_sample_size(metrics) == {"optimizer/loss": 1.0, "mismatch/effective_sample_size": expected}
    assert (
        with_effective_sample_size({"mismatch/weight_mean": 1.0, "mismatch/weight_squared": 1.0})[
            "mismatch/effective_sample_size"
        ]
        == 1.0
    )


def test_the_effective_sample_size_is_one_of_equal_weights_and_a_share_of_one_that_rules() -> None:
    assert effective_sample_size(0.3, 0.3**2) == pytest.approx(1.0)
    assert effective_sample_size(1 / 4, 1 / 4) == 0.25
