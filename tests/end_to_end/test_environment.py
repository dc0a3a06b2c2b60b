"""A run on an environment that it hosts itself: many turns, tools, rewards by the turn, and books that balance."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.running import ROOT, Run, largest_difference, train
from tests.env.serving import served

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
RECIPE = ROOT / "recipes" / "tool_calculator.yaml"
SMALL = (
    "trainer.updates=2", "trainer.groups_per_update=4", "trainer.group_size=4", "trainer.eval_every=0",
    "data.eval.seeds=8", "model.warmup.updates=25", "model.warmup.batch_size=16", "cluster.kind=local",
    "environment.arguments.digits=3", "model.warmup.arguments.digits=3",
)  # fmt: skip
"""With the environment's own defaults for its arguments, so that a run without any has the same demonstrations."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Run:
    return train(tmp_path_factory.mktemp("runs") / "calculator", cache, *SMALL, recipe=RECIPE)


def test_it_trains_and_the_accounts_balance(run: Run) -> None:
    accounts = run.summary["sample_counts"]
    assert (run.summary["outcome"], run.summary["updates"]) == ("finished", 2)
    assert accounts.pop("admitted") == sum(accounts.values()) == 32
    assert run.metrics[-1]["environment/turns_mean"] >= 1


def test_what_the_policy_will_be_asked_is_shown_before_training(run: Run) -> None:
    told = (run.folder / "logs" / "controller.log").read_text()
    assert "prompt of the first episode (" in told
    assert told.index("<|im_start|>user\n") < told.index("update 1/2")


def test_all_samples_of_a_group_are_asked_the_same(run: Run) -> None:
    asked: dict[int, set[str]] = {}
    for episode in run.episodes:
        asked.setdefault(episode.ordinal, set()).add(episode.conversation[0]["content"])
    assert [len(questions) for questions in asked.values()] == [1] * 8
    assert len(set.union(*asked.values())) > 4


def test_every_episode_has_its_turns_and_engine_and_learner_agree_on_them(run: Run) -> None:
    for episode in run.episodes:
        assert episode.turns
        assert episode.reward == sum(turn["reward"] or 0 for turn in episode.turns)
        assert episode.status == ("terminated" if episode.turns[-1]["terminated"] else "truncated")
    assert largest_difference(run.episodes) <= 1e-4


@pytest.mark.slow
def test_with_last_n_every_turn_is_a_segment_and_engine_and_learner_agree(tmp_path: Path, cache: Path) -> None:
    shown = train(tmp_path / "run", cache, *SMALL, "environment.last_n=1", recipe=RECIPE)
    for episode in shown.episodes:
        assert len(episode.segment_lengths) == len(episode.turns)
    assert largest_difference(shown.episodes) <= 1e-4


@pytest.mark.slow
def test_behind_a_server_the_same_episodes_are_played_bit_for_bit(run: Run, tmp_path: Path, cache: Path) -> None:
    with served("CalculatorEnvironment", module="rlhf.env.tools:", arguments={"digits": 3}) as url:
        changes = ("environment.environment=null", "environment.arguments={}", f"environment.urls=[{url}]")
        remote = train(tmp_path / "run", cache, *SMALL, *changes, recipe=RECIPE)
    assert [one.token_ids.tolist() for one in remote.episodes] == [one.token_ids.tolist() for one in run.episodes]
    assert [one.turns for one in remote.episodes] == [one.turns for one in run.episodes]


@pytest.mark.slow
def test_it_trains_on_servers_that_it_starts_and_repeats_offline_bit_for_bit(tmp_path: Path, cache: Path) -> None:
    recording = f"environment.recording.path={tmp_path / 'tools.jsonl'}"
    served = ("cluster.kind=ray", "environment.servers=2", recording, "environment.recording.mode=record")
    live = train(tmp_path / "live", cache, *SMALL, *served, recipe=RECIPE)
    logs = {log.stem for log in (live.folder / "logs").glob("environment-*.log")}
    assert (live.summary["outcome"], logs) == ("finished", {"environment-0", "environment-1"})
    assert largest_difference(live.episodes) <= 1e-4
    again = train(tmp_path / "again", cache, *SMALL, recording, recipe=RECIPE)
    assert len(live.episodes) == 32
    assert played(again) == played(live)


def played(run: Run) -> list[tuple[object, ...]]:
    """Every episode as it was played, in order of training."""
    ordered = sorted(run.episodes, key=lambda one: (one.ordinal, one.sample))
    return [
        (one.ordinal, one.sample, one.token_ids.tolist(), one.turns, one.reward, one.conversation) for one in ordered
    ]
