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


@pytest.mark.ecosystem
def test_letters_of_reasoning_gym_are_counted_right(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "reasoning_gym", cache, recipe=ROOT / "recipes" / "reasoning_gym.yaml")
    assert rise(run) >= 0.3
