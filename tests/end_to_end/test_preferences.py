"""From preference pairs to a reward model to a policy that earns its score: the recipes of `preference_ppo`, small."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from tests.datasets import HH
from tests.end_to_end.running import ROOT, Run, train

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

RECIPES = ROOT / "recipes" / "preference_ppo"
TINY = TinyModelConfig(hidden_size=64, intermediate_size=128, layers=1)
LOCAL = "cluster.kind=local"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(TINY, 0, tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def reward_model(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(
        tmp_path_factory.mktemp("reward-model") / "run", policy.parent, LOCAL, f"model.path={policy}",
        "trainer.updates=10", "trainer.groups_per_update=32", "trainer.eval_every=5", "data.eval.arguments.rows=64",
        "trainer.optimizer.warmup_steps=0", "trainer.optimizer.learning_rate=3e-3",
        recipe=RECIPES / "2_reward_model.yaml",
    )  # fmt: skip


@pytest.fixture(scope="module")
def ppo(policy: Path, reward_model: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A short run with the reward model in a worker of its own; its run folder names it."""
    return train(
        tmp_path_factory.mktemp("ppo") / "run", policy.parent, f"model.path={policy}",
        f"reward.model={reward_model.folder}", f"trainer.critic.path={reward_model.folder}",
        "trainer.updates=2", "trainer.groups_per_update=8",
        "trainer.critic.warmup_updates=0", "data.eval.arguments.rows=16", recipe=RECIPES / "3_ppo.yaml",
    )  # fmt: skip


def test_held_out_pairs_are_judged_before_between_and_after(reward_model: Run) -> None:
    held_out = reward_model.summary["evaluations"]["held_out"]
    assert held_out["problems"] == 64
    assert held_out["start"]["accuracy"] == 0.5, "a fresh head ties every pair"
    assert held_out["end"]["loss"] < held_out["start"]["loss"]
    judged = [line for line in reward_model.metrics if "eval/held_out/accuracy" in line]
    assert [line["update"] for line in judged] == [5, 10]
    assert judged[-1]["eval/held_out/accuracy"] == held_out["end"]["accuracy"]


def test_its_checkpoint_is_a_sequence_classification_model_with_one_label(reward_model: Run) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(reward_model.model)
    assert model.config.num_labels == 1
    assert bool(model.score.weight.any())


def test_the_reward_of_every_episode_is_the_reward_models_score_of_its_tokens(ppo: Run, reward_model: Run) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(reward_model.model).eval()
    assert len(ppo.episodes) > 8
    for episode in ppo.episodes:
        with torch.no_grad():
            expected = float(model(torch.tensor(episode.token_ids)[None]).logits)
        assert episode.reward == pytest.approx(expected, abs=1e-4)
    assert len({episode.reward for episode in ppo.episodes}) > 4


def test_the_critic_is_measured_and_the_distance_to_the_start_priced(ppo: Run) -> None:
    for line in ppo.metrics:
        assert {"critic/explained_variance", "critic/loss", "policy/kl_reference", "policy/kl_coefficient"} <= set(line)


@pytest.mark.slow
def test_the_same_recipe_learns_from_real_pairs(policy: Path, tmp_path: Path) -> None:
    run = train(
        tmp_path / "run", policy.parent, LOCAL, "model.path=null",
        "model.tiny={hidden_size: 32, intermediate_size: 32, layers: 1, heads: 1, max_position_embeddings: 1024}",
        "data.train.tasks=null", "data.train.arguments={}", f"data.train.path={HH}", "data.train.limit=100",
        "data.eval=null", "trainer.updates=2", "trainer.groups_per_update=4", recipe=RECIPES / "2_reward_model.yaml",
    )  # fmt: skip
    assert [line["update"] for line in run.metrics] == [1, 2]
    assert all(line["pairs/loss"] > 0 for line in run.metrics)
    assert "1 of 100 pairs dropped: 1 where a reply is empty" in run.process.stdout
