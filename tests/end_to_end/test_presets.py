"""Every preset's recipe learns the quickstart's task, and RLHF as it is known learns its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end import running
from tests.end_to_end.running import ROOT, train

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

PRESETS = sorted((ROOT / "recipes" / "presets").glob("*.yaml"))
PREFERENCES = ROOT / "recipes" / "preference_ppo"


@pytest.fixture(autouse=True)
def time_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "RUN_SECONDS", 600)


@pytest.mark.parametrize("recipe", PRESETS, ids=lambda path: path.stem)
def test_a_preset_raises_the_held_out_reward(recipe: Path, tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "run", cache, recipe=recipe)
    print(recipe.stem, run.summary["eval_reward_start"], run.summary["eval_reward_end"])
    assert run.summary["eval_problems"] == 256
    assert run.summary["eval_reward_end"] - run.summary["eval_reward_start"] >= 0.3


def test_preferences_become_a_reward_model_and_the_reward_model_a_better_policy(tmp_path: Path, cache: Path) -> None:
    sft = train(tmp_path / "sft", cache, recipe=PREFERENCES / "1_sft.yaml")
    start = f"model.path={sft.model}"
    pairs = train(tmp_path / "pairs", cache, start, recipe=PREFERENCES / "2_reward_model.yaml")
    (accuracy,) = [found["end"]["accuracy"] for found in pairs.summary["evaluations"].values()]
    assert accuracy >= 0.9
    scores = (f"reward.model={pairs.model}", f"trainer.critic.path={pairs.model}")
    ppo = train(tmp_path / "ppo", cache, start, *scores, recipe=PREFERENCES / "3_ppo.yaml")
    explained = [update["critic/explained_variance"] for update in ppo.metrics]
    divergence = [update["policy/kl_reference"] for update in ppo.metrics]
    rise = ppo.summary["eval_reward_end"] - ppo.summary["eval_reward_start"]
    print("accuracy", accuracy, "rise", rise, "kl", max(divergence), "explained", sum(explained[-5:]) / 5)
    assert rise >= 2.0
    assert max(divergence) < 0.5
    assert sum(explained[-5:]) / 5 > 0.5
