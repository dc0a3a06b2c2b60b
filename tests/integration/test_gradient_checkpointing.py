"""Activations that are computed again, under ZeRO: policy and critic take the same steps."""

from __future__ import annotations

import pytest

from rlhf.trainer.config import CriticConfig
from rlhf.types import Updated
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.integration.test_learner import trainer
from tests.integration.test_sequence_parallel import assert_like, begin, updates

pytestmark = pytest.mark.engine


def two_updates(workers: list[ProcessWorker], folder: str, stage: int, *, recomputed: bool) -> list[Updated]:
    changes = {"advantage": {"estimator": "gae"}, "critic": CriticConfig(), "tokens_per_microbatch": 400}
    config = trainer(len(workers), stage, **changes)
    return updates(begin(workers, folder, config, gradient_checkpointing=recomputed), 2)


@pytest.fixture(scope="module")
def kept(single: list[ProcessWorker], folder: str) -> list[Updated]:
    return two_updates(single, folder, 0, recomputed=False)


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), pytest.param(2, 3, marks=pytest.mark.slow)])
def test_recomputed_activations_give_policy_and_critic_the_same_steps(
    request: pytest.FixtureRequest, folder: str, kept: list[Updated], ranks: int, stage: int
) -> None:
    assert kept[1].metrics["critic/grad_norm"] > 0
    assert_like(two_updates(ranks_of(request, ranks), folder, stage, recomputed=True), kept, tolerance=1e-4)
