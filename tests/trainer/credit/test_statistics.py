"""What people read of a batch: each number by hand on episodes small enough to count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlhf.trainer.credit.statistics import batch_statistics, repetition, response_statistics, trained_statistics
from rlhf.types import (
    EpisodeStatus,
    Failed,
    Group,
    Message,
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

PROMPT, ACTION, ENV = TokenKind.PROMPT, TokenKind.ACTION, TokenKind.ENV
TASK = Task(id="t", messages=())


def segment(*tokens: tuple[TokenKind, int], version: int = 0) -> Segment:
    kinds = np.array([kind for kind, _ in tokens], np.int8)
    return Segment(
        token_ids=np.array([token for _, token in tokens], np.int32),
        kinds=kinds,
        behaviour_logprobs=np.zeros(len(tokens), np.float32),
        versions=np.where(kinds == ACTION, version, -1).astype(np.int32),
    )


def reply(*token_ids: int, status: EpisodeStatus = EpisodeStatus.TERMINATED, version: int = 0) -> Trajectory:
    tokens = [(PROMPT, 9), (PROMPT, 9), *((ACTION, token) for token in token_ids)]
    return Trajectory(task=TASK, segments=(segment(*tokens, version=version),), status=status)


def group(*samples: tuple[Trajectory, float | None], baseline: float | None = None) -> Group:
    def sample(trajectory: Trajectory, reward: float | None) -> Sample:
        return Sample(trajectory=trajectory, score=Unscored(kind="timeout") if reward is None else Scored(value=reward))

    beside = None if baseline is None else sample(reply(1), baseline)
    return Group(
        ticket=Ticket(ordinal=0, version=0), task=TASK, samples=tuple(sample(*s) for s in samples), baseline=beside
    )


def test_rewards_lengths_and_staleness_are_of_the_samples_that_are_trained() -> None:
    batch = [
        group((reply(1, 2), 1.0), (reply(1, 2, 3, 4, version=2), 0.0), (reply(*range(50)), None)),
        group((reply(5), 1.0), (reply(6), 1.0)),
    ]
    statistics = batch_statistics(batch, version=3)
    assert statistics["reward/mean"] == 0.75
    assert statistics["reward/std"] == pytest.approx(np.std([1, 0, 1, 1]))
    assert statistics["reward/equal_groups"] == 0.5
    assert (statistics["response/tokens_mean"], statistics["response/tokens_max"]) == (2.0, 4.0)
    assert statistics["samples/lost"] == 1
    assert (statistics["staleness/mean"], statistics["staleness/max"]) == ((4 * 3 + 4 * 1) / 8, 3)


def test_only_what_a_step_used_is_counted_as_trained() -> None:
    batch = [group((reply(1, 2), 1.0), (reply(3), 0.0), (reply(*range(50)), None))]
    assert trained_statistics(batch, {(0, 0), (0, 1)}) == {"samples/trained": 2, "tokens/trained": 3}
    assert trained_statistics(batch, {(0, 1)}) == {"samples/trained": 1, "tokens/trained": 1}


def test_truncated_episodes_are_counted_and_their_length_is_told_apart() -> None:
    cut = reply(1, 2, 3, 4, 5, 6, status=EpisodeStatus.TRUNCATED)
    statistics = response_statistics([reply(1), reply(1, 2), cut, cut])
    assert statistics["response/truncated"] == 0.5
    assert statistics["response/truncated_tokens_mean"] == 6.0
    assert "response/truncated_tokens_mean" not in response_statistics([reply(1)]), "no number where there is none"


def test_what_broke_is_counted_by_kind() -> None:
    broken = Sample(trajectory=Failed(kind="environment_lost"), score=Unscored(kind="not_played"))
    batch = group((reply(1), 1.0), (reply(2), None))
    statistics = batch_statistics([replace(batch, samples=(*batch.samples, broken, broken))], version=0)
    assert {name: value for name, value in statistics.items() if name.startswith("samples/lost/")} == {
        "samples/lost/environment_lost": 2.0,
        "samples/lost/timeout": 1.0,
    }


def test_turns_and_malformed_calls_are_of_episodes_with_an_environment() -> None:
    def played(turns: int, malformed: int) -> Trajectory:
        one = segment((PROMPT, 9), (ACTION, 1))
        segments = (replace(one, turns=(Turn(start=1, stop=2),) * turns),)
        said = (Message(role="user", content="go"),)
        return replace(reply(1), segments=segments, conversation=said, malformed_calls=malformed)

    statistics = batch_statistics([group((played(3, 1), 1.0), (played(1, 0), 0.0))], version=0)
    assert statistics["environment/turns_mean"] == 2.0
    assert statistics["environment/malformed_calls_mean"] == 0.5
    assert "environment/tool_errors_mean" not in statistics
    counting = replace(played(1, 0), env_info=({"tool_errors": 0}, {"tool_errors": 3}))
    counted = batch_statistics([group((counting, 1.0), (played(1, 0), 0.0))], version=0)
    assert counted["environment/tool_errors_mean"] == 3.0
    assert not any(name.startswith("environment/") for name in batch_statistics([group((reply(1), 1.0))], version=0))


def test_a_greedy_baseline_has_its_own_mean_and_changes_no_other_number() -> None:
    samples = ((reply(1), 1.0), (reply(2), 0.0))
    with_one = batch_statistics([group(*samples, baseline=0.25)], version=0)
    without = batch_statistics([group(*samples)], version=0)
    assert with_one.pop("reward/greedy_baseline") == 0.25
    assert with_one == without


def test_repetition_is_the_share_of_n_grams_that_came_before() -> None:
    assert repetition(reply(1, 2, 3, 4, 5)) == 0.0
    assert repetition(reply(*[7] * 13)) == 1 - 1 / 10
    assert repetition(reply(1, 2, 3, 4, 1, 2, 3, 4)) == pytest.approx(1 / 5), "1234 2341 3412 4123 1234"
    assert repetition(reply(1, 1, 1)) is None, "three tokens hold no 4-gram"


def test_repetition_agrees_with_counting_on_random_tokens() -> None:
    random = np.random.default_rng(0)
    for length in (4, 5, 30, 200):
        tokens = random.integers(0, 3, length).tolist()
        seen: list[list[int]] = []
        again = 0
        for start in range(length - 3):
            gram = tokens[start : start + 4]
            again += gram in seen
            seen.append(gram)
        assert repetition(reply(*tokens)) == pytest.approx(again / (length - 3))


def test_n_grams_lie_within_one_turn_and_are_compared_over_the_whole_episode() -> None:
    turns = (
        [(ACTION, n) for n in (1, 2, 3, 4)],
        [(ENV, n) for n in (1, 2, 3, 4, 5)],
        [(ACTION, n) for n in (1, 2, 3, 4)],
    )
    joined = Trajectory(
        task=TASK, segments=(segment((PROMPT, 1), *turns[0], *turns[1], *turns[2]),), status=EpisodeStatus.TERMINATED
    )
    parted = replace(joined, segments=(segment((PROMPT, 1), *turns[0]), segment((PROMPT, 1), *turns[2])))
    assert repetition(joined) == repetition(parted) == 0.5


def test_the_repetition_of_a_batch_is_the_mean_over_those_that_have_one() -> None:
    statistics = response_statistics([reply(1), reply(1, 2, 3, 4), reply(7, 7, 7, 7, 7)])
    assert statistics["response/repetition"] == 0.25
    assert "response/repetition" not in response_statistics([reply(1), reply(1, 2)])
