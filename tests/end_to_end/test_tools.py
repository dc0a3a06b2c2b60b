"""A class of tools as `rlhf init` writes it, from its file to trained updates."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.apps.cli.init import run_init
from tests.end_to_end.running import train

pytestmark = pytest.mark.engine


def test_two_updates_are_trained_on_calls_whose_state_the_reward_reads(tmp_path: Path, cache: Path) -> None:
    run_init(tmp_path / "mine", "tools")
    (tmp_path / "mine" / "counted.py").write_text("def calls(response, row, state): return state['calls']\n")
    run = train(
        tmp_path / "run", cache, "cluster.kind=local", "model.warmup.updates=60", "model.warmup.batch_size=16",
        "trainer.updates=2", "trainer.groups_per_update=4", "trainer.eval_every=0", "data.eval=null",
        "reward.function=counted:calls", recipe=tmp_path / "mine" / "recipe.yaml",
    )  # fmt: skip
    trained = [one for one in run.episodes if one.outcome == "trained"]
    assert len(trained) == 2 * 4 * 8
    results = [[said["content"] for said in one.conversation or [] if said["role"] == "tool"] for one in trained]
    assert any("".join(sorted(one.prompt[-1]["content"])) in told for one, told in zip(trained, results, strict=True))
    for one, told in zip(trained, results, strict=True):
        assert one.reward == sum("error" not in text and "malformed" not in text for text in told)
