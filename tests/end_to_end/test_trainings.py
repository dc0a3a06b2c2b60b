"""The recipes of the trainings around RL learn what they are there to teach."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end import running
from tests.end_to_end.running import ROOT, train

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def time_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "RUN_SECONDS", 600)


def test_a_small_student_learns_from_the_quickstart_s_policy(tmp_path: Path, cache: Path) -> None:
    teacher = train(tmp_path / "teacher", cache)
    distilled = train(
        tmp_path / "run", cache, f"trainer.reference_path={teacher.folder}", recipe=ROOT / "recipes" / "distill.yaml"
    )
    divergence = [update["policy/kl_reference"] for update in distilled.metrics]
    print(distilled.summary["eval_reward_start"], distilled.summary["eval_reward_end"], divergence[0], divergence[-1])
    assert distilled.summary["eval_reward_end"] - distilled.summary["eval_reward_start"] >= 0.3
    assert sum(divergence[-5:]) < 0.7 * sum(divergence[:5])


def test_dpo_tells_held_out_pairs_apart(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "run", cache, recipe=ROOT / "recipes" / "dpo.yaml")
    (held_out,) = run.summary["evaluations"].values()
    print(held_out["end"])
    assert held_out["problems"] == 512
    assert held_out["start"]["accuracy"] == 0.5
    assert held_out["end"]["accuracy"] >= 0.9
