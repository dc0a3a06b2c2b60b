"""Evaluations: every problem of every set once, each set asked its own way, and no number made up."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.data.config import EvaluationSetConfig
from rlhf.rollout.evaluation import EvaluationFailed, EvaluationSet, Evaluator, evaluate_set, problem_metrics
from rlhf.rollout.group import GroupRollout
from rlhf.types import EpisodeStatus, Group, Sample, Sampling, Scored, Task, Ticket, Trajectory, Unscored
from tests.fakes import FakeEngine, FakeRenderer, FakeReward

TASKS = [Task(id=f"t{n}", messages=(), answer=str(n % 2)) for n in range(4)]


def evaluation_set(engine: FakeEngine, reward: FakeReward, name: str = "held_out", **settings: Any) -> EvaluationSet:
    config = EvaluationSetConfig(path="x", **settings)
    rollout = GroupRollout(
        engine=engine, renderer=FakeRenderer(), reward=reward, group_size=config.samples, max_context_tokens=32,
        sampling=Sampling(temperature=config.temperature, max_tokens=config.max_tokens or 4), run_seed=1,
        purpose=f"eval-{name}",
    )  # fmt: skip
    return EvaluationSet(name=name, config=config, tasks=TASKS, rollout=rollout)


def problem(*replies: tuple[str, float | None]) -> Group:
    """A problem with its replies: what each says, and its reward."""
    task = TASKS[0]
    samples = [
        Sample(
            trajectory=Trajectory(task=task, segments=(), status=EpisodeStatus.TERMINATED, response=response),
            score=Unscored(kind="timeout") if reward is None else Scored(value=reward),
        )
        for response, reward in replies
    ]
    return Group(ticket=Ticket(ordinal=0, version=0), task=task, samples=tuple(samples))


async def test_one_greedy_reply_to_every_problem_is_what_is_asked_without_more() -> None:
    engine = FakeEngine()
    evaluation = await Evaluator([evaluation_set(engine, FakeReward(1.0))])(version=0)
    assert (evaluation.reward, evaluation.problems, evaluation.distinct_answers) == (1.0, 4, 2)
    assert len(engine.asked) == 4
    assert {sampling for _, sampling, _ in engine.asked} == {Sampling(temperature=0, max_tokens=4)}
    assert evaluation.metrics["eval/held_out/avg@1"] == evaluation.metrics["eval/reward"] == 1.0


async def test_every_set_is_asked_its_own_way_and_the_first_one_speaks_for_all() -> None:
    greedy, sampled = FakeEngine(), FakeEngine()
    easy = evaluation_set(greedy, FakeReward(1.0), "easy")
    hard = evaluation_set(sampled, FakeReward(0, 1), "hard", samples=2, temperature=0.7, max_tokens=1, pass_at=(1, 2))
    evaluation = await Evaluator([easy, hard])(version=3)
    assert [one.name for one in evaluation.sets] == ["easy", "hard"]
    assert {sampling for _, sampling, _ in sampled.asked} == {Sampling(temperature=0.7, max_tokens=1)}
    assert (len(greedy.asked), len(sampled.asked)) == (4, 8)
    assert len({seed for _, _, seed in greedy.asked + sampled.asked}) == 12, "sets share no draws"
    assert evaluation.reward == 1.0
    assert evaluation.metrics == {
        "eval/reward": 1.0,
        "eval/easy/avg@1": 1.0, "eval/easy/unscored": 0.0, "eval/easy/tokens_mean": 2.0, "eval/easy/truncated": 0.0,
        "eval/hard/avg@2": 0.5, "eval/hard/pass@1": 0.5, "eval/hard/pass@2": 1.0,
        "eval/hard/unscored": 0.0, "eval/hard/tokens_mean": 1.0, "eval/hard/truncated": 1.0,
    }  # fmt: skip


async def test_a_problem_counts_once_however_often_it_is_asked() -> None:
    result = await evaluate_set(
        evaluation_set(FakeEngine(), FakeReward(1, 0, 0, 0), samples=4, temperature=1.0), version=0
    )
    assert (result.problems, result.reward) == (4, 0.25)
    assert [len(group.samples) for group in result.groups] == [4] * 4


def test_the_numbers_of_one_problem() -> None:
    config = EvaluationSetConfig(
        path="x", samples=5, temperature=1, pass_at=(1, 3), majority_at=(1, 5), vote_after="#### "
    )
    group = problem(("so #### 7", 0), ("#### 4", 1), ("I think #### 4", 1), ("#### 7", 0), ("it is #### 4", 1))
    assert problem_metrics(group, config) == pytest.approx(
        {"avg@5": 0.6, "pass@1": 0.6, "pass@3": 1.0, "maj@1": 0.6, "maj@5": 1.0}
    )


def test_a_reply_passes_from_the_reward_that_the_recipe_says() -> None:
    group = problem(("a", 0.4), ("b", 0.6))
    half = EvaluationSetConfig(path="x", samples=2, temperature=1, pass_at=(2,), pass_reward=0.5)
    whole = EvaluationSetConfig(path="x", samples=2, temperature=1, pass_at=(2,))
    assert problem_metrics(group, half)["pass@2"] == 1.0
    assert problem_metrics(group, whole)["pass@2"] == 0.0


@pytest.mark.parametrize(("reward", "passes"), [(sum([0.1] * 10), 1.0), (0.1 + 0.7 + 0.2, 1.0), (0.999, 0.0)])
def test_a_sum_that_is_one_up_to_its_rounding_passes(reward: float, passes: float) -> None:
    assert sum([0.1] * 10) < 1
    config = EvaluationSetConfig(path="x", samples=1, temperature=1, pass_at=(1,))
    assert problem_metrics(problem(("a", reward)), config)["pass@1"] == passes


def test_a_reply_without_a_number_is_no_zero() -> None:
    config = EvaluationSetConfig(path="x", samples=3, temperature=1, pass_at=(1,), majority_at=(2,))
    group = problem(("a", 1), ("b", None), ("a", 1))
    assert problem_metrics(group, config) == {"avg@3": 1.0, "pass@1": 1.0, "maj@2": 1.0}


async def test_replies_without_a_number_are_counted() -> None:
    one = evaluation_set(FakeEngine(), FakeReward(1, None, 1), samples=3, temperature=1.0, pass_at=(2,))
    result = await evaluate_set(one, version=0)
    assert (result.reward, result.metrics["unscored"]) == (1.0, 4.0)


async def test_a_problem_without_any_number_leaves_the_evaluation_without_one() -> None:
    with pytest.raises(EvaluationFailed, match=r"evaluation on held_out: task t0.* reward\.on_scorer_failure$"):
        await evaluate_set(evaluation_set(FakeEngine(), FakeReward(None)), version=0)


async def test_fewer_scored_replies_than_a_metric_needs_leave_the_evaluation_without_a_number() -> None:
    one = evaluation_set(FakeEngine(), FakeReward(1, None, 1), samples=3, temperature=1.0, pass_at=(3,))
    with pytest.raises(EvaluationFailed, match=r"needs 3 scored replies and has 2 of 3.*on_scorer_failure$"):
        await evaluate_set(one, version=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"samples": 4}, "at temperature 0 all are the same"),
        ({"pass_at": [2]}, r"each k must be from 1 to samples \(1\)"),
        ({"samples": 4, "temperature": 1, "majority_at": [8]}, r"each k must be from 1 to samples \(4\)"),
        ({"temperature": 0.001}, "at least 0.01"),
    ],
)
def test_what_cannot_be_measured_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EvaluationSetConfig(path="x", **settings)
