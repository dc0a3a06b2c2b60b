"""A loss of the user's own, `module:function` in a recipe, on a real rank. `tests/extension/` has the other pieces."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf.models.config import ModelConfig
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.losses import Actions, LossMetrics
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import Updated
from tests.integration.learner_ranks import ProcessWorker
from tests.trainer.made import made_groups

pytestmark = pytest.mark.engine


def unclipped(actions: Actions) -> tuple[Tensor, LossMetrics]:
    """The surrogate without a clip."""
    ratio = torch.exp(actions.log_ratio)
    return -ratio * actions.advantages, LossMetrics(len(ratio), {})


def towards_the_reference(actions: Actions, *, coefficient: float, entropy: float) -> tuple[Tensor, LossMetrics]:
    """The surrogate with KL to the reference, by its exact gradient, and an entropy bonus of its own."""
    assert actions.reference_logprobs is not None
    loss, seen = unclipped(actions)
    far = (actions.logprobs - actions.reference_logprobs).square() / 2
    return loss + coefficient * far - entropy * actions.entropies, seen


def updated(workers: list[ProcessWorker], folder: str, **trainer: Any) -> Updated:
    """Several steps, so that there is a distance to the reference."""
    config = TrainerConfig(minibatches=2, optimizer={"learning_rate": 1e-3}, **trainer)
    learner = RemoteLearner(workers, config)
    settings = LearnerSettings(model_path=folder, model=ModelConfig(path=folder), trainer=config)
    asyncio.run(learner.start(settings))
    return asyncio.run(learner.update(made_groups(4, 4)))


def test_a_loss_of_one_s_own_may_add_its_own_kl_and_entropy_terms(single: list[ProcessWorker], folder: str) -> None:
    """To the digit what the library's terms do. Both read gradients that the library has only where a recipe asks for
    them."""
    arguments = {"coefficient": 0.5, "entropy": 0.1}
    whole = {"policy": f"{__name__}:towards_the_reference", "arguments": arguments}
    part = {"policy": f"{__name__}:unclipped", "entropy_coefficient": 0.1}
    own = updated(single, folder, loss=whole, hold_reference=True).metrics
    library = updated(single, folder, loss=part, kl={"coefficient": 0.5, "estimator": "k2"}).metrics
    assert own["optimizer/grad_norm"] == pytest.approx(library["optimizer/grad_norm"], rel=1e-6)
    assert own["optimizer/loss"] == pytest.approx(library["optimizer/loss"], rel=1e-6)
