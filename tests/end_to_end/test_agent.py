"""A run whose episodes an agent of plain HTTP drives: it learns, and its books are as those of any run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.running import Run, largest_difference, train

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(400)]
AGENT = (
    "agent.program=tests.end_to_end.agents:sorts", "reward.kind=environment", "cluster.kind=local",
    "trainer.updates=5", "trainer.groups_per_update=32", "trainer.eval_every=5", "data.eval.arguments.rows=128",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Run:
    return train(tmp_path_factory.mktemp("runs") / "agent", cache, *AGENT)


def test_it_learns_what_the_agent_rewards(run: Run) -> None:
    summary = run.summary
    assert summary["eval_reward_start"] <= 0.5
    assert summary["eval_reward_end"] >= summary["eval_reward_start"] + 0.3


def test_every_episode_was_driven_by_the_agent_and_the_accounts_balance(run: Run) -> None:
    accounts = run.summary["sample_counts"]
    assert accounts.pop("admitted") == sum(accounts.values()) == len(run.episodes) == 5 * 32 * 8
    assert accounts["failed"] == 0
    for episode in run.episodes:
        [turn] = episode.turns
        assert (turn["reward"], turn["terminated"]) == (episode.reward, True)
        assert [message["role"] for message in episode.conversation] == ["user", "assistant"]
        assert (episode.reward == 1.0) == (episode.response == episode.answer)


def test_engine_and_learner_agree_on_what_the_agent_was_given(run: Run) -> None:
    assert largest_difference(run.episodes) <= 1e-4
