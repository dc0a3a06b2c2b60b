"""What several ranks hold in shards is read and written as one model, by other ranks and other stages too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from rlhf.models.loading import load_policy
from rlhf.trainer.config import CriticConfig, TrainerConfig
from rlhf.trainer.rank import zero
from rlhf.trainer.rank.policy_rank import Rank
from rlhf.trainer.rank.tensor_files import INDEX, export_weights
from tests.integration.learner_ranks import ProcessWorker
from tests.integration.test_learner import CANARY, look, same, start, train, trainer, whole_weights
from tests.whole import whole_state

pytestmark = pytest.mark.engine
SMALL_FILES = 200_000
THRESHOLD = "stage3_param_persistence_threshold"


def critic_and_average(rank: Rank) -> dict[str, torch.Tensor]:
    assert rank.critic is not None
    assert rank.average is not None
    found = {f"critic.{name}": weight for name, weight in whole_state(rank.critic.module).items()}
    with rank.average.in_place():
        return found | whole_state(rank.policy)


def whole_elements(rank: Rank) -> int:
    """Elements of weights that this rank holds gathered."""
    assert rank.reference is not None
    return sum(weight.numel() for module in (rank.policy, rank.reference) for weight in module.parameters())


def reference_logprobs(rank: Rank) -> np.ndarray:
    assert rank.reference is not None
    ids = torch.as_tensor(CANARY).long()
    places = torch.arange(len(ids))
    with zero.forward_only(rank.reference):
        found, _ = rank.reference(ids[None], places[None], places[:-1], places[1:], 1.0)
    return found.numpy()


def exported_in_small_files(rank: Rank, folder: Path) -> list[Path]:
    return export_weights(rank.policy, folder, 1 << 16, SMALL_FILES)


def test_a_critic_and_an_average_go_on_with_other_ranks_and_another_stage(
    pair: list[ProcessWorker], single: list[ProcessWorker], folder: str, tmp_path: Path
) -> None:
    changes = {"advantage": {"estimator": "gae"}, "critic": CriticConfig(), "ema_decay": 0.5}
    learner = start(pair, folder, trainer(2, 3, **changes))
    train(learner, 2)
    asyncio.run(learner.save(tmp_path))
    expected, weights = look(pair, critic_and_average), look(pair, whole_weights)
    assert not same(weights, {name: one for name, one in expected.items() if not name.startswith("critic.")})
    moved = start(single, folder, trainer(1, 0, **changes))
    asyncio.run(moved.load(tmp_path))
    assert same(look(single, critic_and_average), expected)
    assert same(look(single, whole_weights), weights)


def test_policy_and_reference_are_sharded_and_compute_what_whole_ones_do(
    pair: list[ProcessWorker], single: list[ProcessWorker], folder: str, tmp_path: Path
) -> None:
    start(single, folder, trainer(1, 0, hold_reference=True))
    expected = look(single, reference_logprobs)
    start(pair, folder, trainer(2, 3, hold_reference=True))
    np.testing.assert_allclose(look(pair, reference_logprobs), expected, atol=1e-5)
    small = sum(weight.numel() for weight in load_policy(folder).parameters() if weight.numel() < 1000)
    assert look(pair, whole_elements) <= 2 * small, "no more than what stays gathered, because it is small"


def test_a_model_folder_of_several_files_is_written_by_all_ranks_and_is_the_policy(
    pair: list[ProcessWorker], folder: str, tmp_path: Path
) -> None:
    learner = start(pair, folder, trainer(2, 3))
    train(learner, 1)
    asyncio.run(learner.export(tmp_path))
    futures = [worker.inspect(exported_in_small_files, tmp_path) for worker in pair]
    first, second = (future.result(timeout=60) for future in futures)
    assert {path.name for path in first} & {INDEX}
    assert second, "rank 1 writes its turn of files"
    assert not set(first) & set(second)
    (tmp_path / "model.safetensors").unlink()
    expected = look(pair, whole_weights)
    assert same(dict(load_policy(str(tmp_path)).state_dict()), expected | tied(folder, expected))


def tied(folder: str, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The names that a loaded model has besides, of weights that it has twice."""
    return {
        name: weights["model.embed_tokens.weight"] for name in load_policy(folder).state_dict() if name not in weights
    }


@pytest.mark.parametrize("chosen", [{THRESHOLD: 10**6}, {"zero_hpz_partition_size": 2}])
def test_weights_that_stay_gathered_or_have_a_copy_in_the_node_follow_every_change(
    pair: list[ProcessWorker], folder: str, tmp_path: Path, chosen: dict[str, int]
) -> None:
    """A start check, a saved state and a resume change shards, beside which something whole would go on as it was."""
    train(plain := start(pair, folder, with_sharing({THRESHOLD: 0})), 3)
    expected, scores = look(pair, whole_weights), asyncio.run(plain.token_logprobs(CANARY))
    learner = start(pair, folder, with_sharing(chosen))
    train(learner, 1)
    before = asyncio.run(learner.token_logprobs(CANARY))
    asyncio.run(learner.perturb())
    assert np.abs(asyncio.run(learner.token_logprobs(CANARY)) - before).max() > 0.01
    asyncio.run(learner.restore())
    np.testing.assert_array_equal(asyncio.run(learner.token_logprobs(CANARY)), before)
    asyncio.run(learner.save(tmp_path))
    train(learner, 2)
    assert same(look(pair, whole_weights), expected)
    np.testing.assert_array_equal(asyncio.run(learner.token_logprobs(CANARY)), scores)
    asyncio.run(learner.load(tmp_path))
    np.testing.assert_array_equal(asyncio.run(learner.token_logprobs(CANARY)), before)
    train(learner, 2)
    assert same(look(pair, whole_weights), expected)


def with_sharing(chosen: dict[str, int]) -> TrainerConfig:
    config = trainer(2, 3)
    own = {"config": {"zero_optimization": chosen}}
    return config.model_copy(update={"deepspeed": config.deepspeed.model_copy(update=own)})
