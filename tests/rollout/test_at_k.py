"""avg@n, pass@k and maj@k against counting every subset, and what a reply votes for."""

from __future__ import annotations

import itertools
import random
from statistics import fmean

import pytest

from rlhf.rollout.at_k import average, majority_at, pass_at, vote_of


@pytest.mark.parametrize("replies", [1, 4, 7])
def test_pass_at_k_is_the_share_of_all_subsets_in_which_some_reply_passed(replies: int) -> None:
    for passed, k in itertools.product(range(replies + 1), range(1, replies + 1)):
        outcomes = [True] * passed + [False] * (replies - passed)
        subsets = list(itertools.combinations(outcomes, k))
        assert pass_at(k, replies=replies, passed=passed) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_1_is_the_share_that_passed_and_pass_at_n_whether_any_did() -> None:
    assert pass_at(1, replies=8, passed=3) == pytest.approx(3 / 8)
    assert pass_at(8, replies=8, passed=1) == 1.0
    assert pass_at(8, replies=8, passed=0) == 0.0


def test_the_answer_given_most_often_decides() -> None:
    assert majority_at(5, ["4", "5", "4", "6", "4"], [1, 0, 1, 0, 1]) == 1.0
    assert majority_at(5, ["4", "5", "5", "6", "5"], [1, 0, 0, 0, 0]) == 0.0


def test_answers_that_share_the_first_place_share_the_verdict() -> None:
    assert majority_at(2, ["4", "5"], [1, 0]) == 0.5
    assert majority_at(5, ["4", "5", "4", "5", "6"], [1, 0, 1, 0, 0]) == 0.5


def test_a_vote_of_one_or_of_two_is_the_average() -> None:
    chance = random.Random(0)
    votes = [chance.choice("abc") for _ in range(12)]
    rewards = [float(vote == "a") for vote in votes]
    for k in (1, 2):
        assert majority_at(k, votes, rewards) == pytest.approx(average(rewards))


def test_majorities_of_disjoint_juries_agree_on_average_with_those_of_all_subsets() -> None:
    """Over all orders of the replies the mean is that over all subsets, ties broken every way."""
    votes = ["a", "a", "b", "c", "b", "a"]
    rewards = [float(vote == "a") for vote in votes]

    def broken_at_random(jury: tuple[int, ...]) -> float:
        counts = {vote: sum(votes[i] == vote for i in jury) for vote in {votes[i] for i in jury}}
        winners = [vote for vote, count in counts.items() if count == max(counts.values())]
        return fmean(float(vote == "a") for vote in winners)

    everything = fmean(broken_at_random(jury) for jury in itertools.combinations(range(6), 3))
    orders = itertools.permutations(range(6))
    measured = fmean(majority_at(3, [votes[i] for i in o], [rewards[i] for i in o]) for o in orders)
    assert measured == pytest.approx(everything)


def test_a_rest_that_fills_no_jury_has_no_vote() -> None:
    assert majority_at(3, ["a", "a", "b", "a", "b", "b", "a"], [1, 1, 0, 1, 0, 0, 1]) == 0.5


def test_an_answer_scored_differently_counts_with_the_mean_of_its_scores() -> None:
    assert majority_at(3, ["a", "a", "b"], [1.0, 0.5, 0.0]) == 0.75


@pytest.mark.parametrize(("k", "replies"), [(0, 4), (5, 4)])
def test_more_replies_than_there_are_cannot_be_asked_for(k: int, replies: int) -> None:
    with pytest.raises(ValueError, match=f"@{k} of {replies}"):
        pass_at(k, replies=replies, passed=0)
    with pytest.raises(ValueError, match=f"@{k} of {replies}"):
        majority_at(k, ["a"] * replies, [0.0] * replies)


@pytest.mark.parametrize(
    ("response", "mark", "vote"),
    [
        (" 12345\n", None, "12345"),
        ("first #### 3\nthen #### 42 \nbye", "####", "42"),
        ("so ####\n7", "####", "7"),
        (r"thus \boxed{\frac{1}{2}}.", r"\boxed{", r"\frac{1}{2}"),
        (r"thus \boxed{12", r"\boxed{", "12"),
        ("I do not know", "####", ""),
    ],
)
def test_a_reply_votes_for_what_follows_its_last_mark(response: str, mark: str | None, vote: str) -> None:
    assert vote_of(response, mark) == vote
