"""Real DeepSpeed ranks that learn pairs from their own start. `test_plain_gradients` has each loss's gradient."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhf.models.config import LoraConfig, ModelConfig
from rlhf.models.loading import load_policy
from rlhf.trainer.batching.pairs import PairOfSegments
from rlhf.trainer.config import DeepSpeedConfig, OptimizerConfig, TrainerConfig
from rlhf.trainer.pair_learner import PreferenceLearner
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import Segment
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.trainer.batching.test_pairs import made_pairs

pytestmark = pytest.mark.engine

PAIRS = made_pairs()


def started(
    workers: list[ProcessWorker], policy: str, lora: LoraConfig | None, rate: float, stage: int
) -> PreferenceLearner:
    config = TrainerConfig(
        updates=10,
        tokens_per_microbatch=100,
        optimizer=OptimizerConfig(learning_rate=rate),
        deepspeed=DeepSpeedConfig(ranks=len(workers), zero_stage=stage),
    )
    learner = PreferenceLearner(workers, config)
    settings = LearnerSettings(
        model_path=policy, model=ModelConfig(path=policy, lora=lora), trainer=config, trains="preference"
    )
    asyncio.run(learner.start(settings))
    return learner


def logprob(model: Any, segment: Segment) -> float:
    ids = torch.tensor(segment.token_ids).long()
    with torch.no_grad():
        logits = model(ids[None]).logits[0, :-1].double()
    chosen = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
    return float(chosen[torch.tensor(segment.action_mask[1:])].sum())


def test_pairs_are_learnt_from_their_own_start_with_and_without_adapters(
    folder: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The reference of adapters is the policy without them."""
    for lora, rate, ranks, stage in ((None, 1e-3, 2, 3), (LoraConfig(rank=4, alpha=8), 1e-2, 1, 0)):
        learner = started(ranks_of(request, ranks), folder, lora, rate, stage)
        before = asyncio.run(learner.evaluate(PAIRS))
        assert before == before | {
            "pairs/loss": pytest.approx(np.log(2)), "pairs/accuracy": 0.5, "pairs/margin": 0.0,
            "pairs/reward_chosen": 0.0, "pairs/reward_rejected": 0.0,
        }  # fmt: skip
        for _ in range(10):
            asyncio.run(learner.prefer(PAIRS))
        after = asyncio.run(learner.evaluate(PAIRS))
        assert learner.version == 10
        assert after["pairs/accuracy"] >= 0.9
        assert after["pairs/loss"] < 0.6, "from the logarithm of 2"
        assert after["pairs/margin"] == pytest.approx(
            after["pairs/reward_chosen"] - after["pairs/reward_rejected"], abs=1e-5
        )
        asyncio.run(learner.save(tmp_path / str(stage)))
        assert exported_margin(folder, tmp_path / str(stage)) == pytest.approx(after["pairs/margin"], abs=1e-4)


def exported_margin(start: str, checkpoint: Path) -> float:
    """What plain transformers makes of the exported policy."""
    policy, reference = (load_policy(str(folder)).eval() for folder in (checkpoint / "huggingface", start))

    def gain(pair: PairOfSegments) -> float:
        chosen, rejected = (logprob(policy, side) - logprob(reference, side) for side in (pair.chosen, pair.rejected))
        return chosen - rejected

    return 0.1 * float(np.mean([gain(pair) for pair in PAIRS]))
