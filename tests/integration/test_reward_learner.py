"""Real DeepSpeed ranks that train a reward model: the same on every plan, and what it leaves is what scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from rlhf.models.config import ModelConfig
from rlhf.reward.model_worker import RewardModelSettings, RewardModelWorker
from rlhf.trainer.batching.pairs import PairOfSegments
from rlhf.trainer.config import DeepSpeedConfig, OptimizerConfig, RewardModelConfig, TrainerConfig
from rlhf.trainer.losses.preference import bradley_terry
from rlhf.trainer.pair_learner import RewardLearner
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import Prompt
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.trainer.batching.test_pairs import made_pairs

pytestmark = pytest.mark.engine

PAIRS = made_pairs()
CENTRING = 0.05


async def started(workers: list[ProcessWorker], model: str, stage: int, tokens: int) -> RewardLearner:
    config = TrainerConfig(
        updates=8,
        tokens_per_microbatch=tokens,
        optimizer=OptimizerConfig(learning_rate=3e-3),
        reward_model=RewardModelConfig(center_rewards_coefficient=CENTRING),
        deepspeed=DeepSpeedConfig(ranks=len(workers), zero_stage=stage),
    )
    learner = RewardLearner(workers, config)
    await learner.start(
        LearnerSettings(model_path=model, model=ModelConfig(path=model), trainer=config, trains="reward_model")
    )
    return learner


async def test_every_plan_learns_the_same_and_its_export_scores_what_it_learnt(
    folder: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    learnt = []
    for ranks, stage, tokens in ((1, 0, 100_000), (2, 3, 50)):
        learner = await started(ranks_of(request, ranks), folder, stage, tokens)
        before = await learner.evaluate(PAIRS)
        steps = [await learner.prefer(PAIRS) for _ in range(8)]
        after = await learner.evaluate(PAIRS)
        await learner.save(tmp_path / f"{ranks}")
        assert learner.version == 8
        assert before["pairs/accuracy"] == 0.5, "a fresh head ties every pair"
        assert before["pairs/score"] == 0.0
        assert after["pairs/accuracy"] >= 0.75
        assert after["pairs/loss"] == pytest.approx(brute_force(tmp_path / f"{ranks}" / "huggingface"), rel=1e-4)
        learnt.append(
            [
                *(step["optimizer/loss"] for step in steps),
                after["pairs/loss"],
                *(step["optimizer/grad_norm"] for step in steps),
            ]
        )
    np.testing.assert_allclose(learnt[0], learnt[1], rtol=2e-4)


def brute_force(folder: Path) -> float:
    """The mean loss by plain transformers, a sequence at a time."""
    model = AutoModelForSequenceClassification.from_pretrained(folder)

    def scores(name: str) -> torch.Tensor:
        ids = [torch.tensor(getattr(pair, name).token_ids).long()[None] for pair in PAIRS]
        with torch.no_grad():
            return torch.cat([model(one).logits[0] for one in ids])

    margins = torch.tensor([pair.margin for pair in PAIRS])
    return float(bradley_terry(scores("chosen"), scores("rejected"), margins, CENTRING).mean())


async def test_training_goes_on_from_a_saved_state_and_from_a_reward_model(
    folder: str, single: list[ProcessWorker], tmp_path: Path
) -> None:
    learner = await started(single, folder, 0, 1000)
    await learner.prefer(PAIRS[:6])
    await learner.save(tmp_path)
    expected = await learner.prefer(PAIRS[6:])
    again = await started(single, folder, 0, 1000)
    await again.load(tmp_path)
    assert await again.prefer(PAIRS[6:]) == expected
    onwards = await started(single, str(tmp_path / "huggingface"), 0, 1000)
    evaluated = await onwards.evaluate(PAIRS)
    scorer = RewardModelWorker()
    scorer.start(RewardModelSettings(model=str(tmp_path / "huggingface"), policy=folder))
    assert evaluated["pairs/score_difference"] == pytest.approx(difference(scorer, PAIRS), abs=1e-5)
    assert evaluated["pairs/score_difference"] != 0.0


def difference(scorer: RewardModelWorker, pairs: list[PairOfSegments]) -> float:
    chosen, rejected = (
        [Prompt(token_ids=getattr(pair, name).token_ids) for pair in pairs] for name in ("chosen", "rejected")
    )
    return float(np.mean(np.subtract(scorer.score(chosen), scorer.score(rejected))))
