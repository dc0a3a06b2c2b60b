import numpy as np

from rlhf.trainer.answers import RankAnswer, reduce_metrics, scatter


def answer(total: float, count: float, largest: float, places: list[int]) -> RankAnswer:
    return RankAnswer(
        sums={"entropy": (total, count)},
        maxima={"ratio_max": largest},
        steps={"grad_norm": (1.0, 3.0)},
        places=np.array(places, np.int64),
        logprobs=-np.array(places, np.float32),
    )


def test_means_are_over_all_tokens_and_not_over_ranks() -> None:
    metrics = reduce_metrics([answer(6.0, 3.0, 1.5, []), answer(1.0, 1.0, 4.0, [])])
    assert metrics == {"entropy": 7 / 4, "ratio_max": 4.0, "grad_norm": 2.0}


def test_a_rank_without_tokens_takes_no_part_in_a_mean() -> None:
    assert "entropy" not in reduce_metrics([answer(0.0, 0.0, 0.0, [])])


def test_no_answers_are_no_metrics() -> None:
    assert reduce_metrics([]) == {}


def test_log_probs_find_their_places_again() -> None:
    flat = scatter([answer(0, 1, 0, [3, 0]), answer(0, 1, 0, [1, 2])], 4)
    assert flat.tolist() == [0, -1, -2, -3]
