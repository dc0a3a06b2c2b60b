"""The recipes for two cores bring the held-out reward up by what their heads promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end import running
from tests.end_to_end.running import ROOT, Run, train

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(autouse=True)
def time_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "RUN_SECONDS", 1200)


def rise(run: Run) -> float:
    start, end = run.summary["eval_reward_start"], run.summary["eval_reward_end"]
    print(f"{run.folder.name}: {start:.3f} → {end:.3f}")
    return end - start


def test_programs_that_pass_their_unit_tests_become_the_rule(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "code_sandbox", cache, recipe=ROOT / "recipes" / "code_sandbox.yaml")
    assert rise(run) >= 0.3
    written = [episode for episode in run.episodes if episode.reward == 1.0]
    assert written
    assert all(episode.response.startswith("def f(x): return ") for episode in written)


def test_a_tool_is_called(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "tool_calculator", cache, recipe=ROOT / "recipes" / "tool_calculator.yaml")
    assert rise(run) >= 0.3


def test_self_play_wins_more_games_against_random_play(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "tictactoe_selfplay", cache, recipe=ROOT / "recipes" / "tictactoe_selfplay.yaml")
    assert rise(run) >= 0.3
    trained = [episode.role for episode in run.episodes if episode.update is not None]
    assert set(trained) == {"first", "second"}


@pytest.mark.ecosystem
def test_sums_of_reasoning_gym_come_out_right(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "reasoning_gym", cache, recipe=ROOT / "recipes" / "reasoning_gym.yaml")
    assert rise(run) >= 0.3


@pytest.mark.ecosystem
def test_the_pole_is_balanced(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "cartpole_ppo", cache, recipe=ROOT / "recipes" / "cartpole_ppo.yaml")
    assert run.summary["eval_reward_end"] >= 150
