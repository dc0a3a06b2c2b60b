"""What `rlhf init` makes learns at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.apps.cli.init import run_init
from tests.end_to_end.running import train

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("kind", ["reward", "environment", "tools", "agent"])
def test_the_held_out_reward_of_a_project_rises(kind: str, tmp_path: Path, cache: Path) -> None:
    run_init(tmp_path / kind, kind)
    summary = train(tmp_path / "run", cache, recipe=tmp_path / kind / "recipe.yaml").summary
    print(kind, summary["eval_reward_start"], summary["eval_reward_end"])
    assert summary["eval_problems"] == 32
    assert summary["eval_reward_end"] - summary["eval_reward_start"] >= 0.5


def test_held_out_pairs_of_a_project_are_told_apart(tmp_path: Path, cache: Path) -> None:
    run_init(tmp_path / "preference", "preference")
    run = train(tmp_path / "run", cache, recipe=tmp_path / "preference" / "recipe.yaml")
    (held_out,) = run.summary["evaluations"].values()
    print(held_out["end"])
    assert (held_out["problems"], held_out["start"]["accuracy"]) == (32, 0.5)
    assert held_out["end"]["accuracy"] >= 0.9
