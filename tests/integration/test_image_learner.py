"""Real DeepSpeed ranks train a tiny Qwen3-VL, its tower too: the same gradient however a batch is cut and sharded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rlhf.chat.image_reader import ImageReader, noise_image
from rlhf.images import ImageFeatures, PlacedImage
from rlhf.models.config import ModelConfig, TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.trainer.batching.batch import build_minibatches
from rlhf.trainer.config import DeepSpeedConfig, OptimizerConfig, TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.rank.policy_rank import Rank
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import Group, Segment, TokenKind
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.integration.test_learner import gradient_of, look, off
from tests.trainer.made import made_batch, made_groups, with_one_prompt

pytestmark = pytest.mark.engine
CUTS = [(100_000, 512), (300, 128), (1, 1)]
PROMPT = 2
"""Tokens before an image."""


@pytest.fixture(scope="module")
def sees(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = TinyModelConfig(
        architecture="qwen3_vl", hidden_size=64, intermediate_size=128, max_position_embeddings=256
    )
    return str(save_tiny(config, 0, tmp_path_factory.mktemp("sees")))


@pytest.fixture(scope="module")
def groups(sees: str) -> list[Group]:
    """Groups of samples that share a prompt: every third has no image, the others one of two."""
    reader = ImageReader(sees)
    images = [reader.features(noise_image(size)) for size in ((56, 56), (84, 56))]
    made = map(with_one_prompt, made_groups(9, 4))
    return [shown(group, images[n % 3]) if n % 3 < 2 else group for n, group in enumerate(made)]


def shown(group: Group, image: ImageFeatures) -> Group:
    def with_image(segment: Segment) -> Segment:
        def inserted(column: np.ndarray, value: Sequence[int]) -> np.ndarray:
            return np.concatenate([column[:PROMPT], np.array(value, column.dtype), column[PROMPT:]])

        count = len(image.token_ids)
        return replace(
            segment,
            token_ids=inserted(segment.token_ids, image.token_ids),
            kinds=inserted(segment.kinds, [TokenKind.PROMPT] * count),
            behaviour_logprobs=inserted(segment.behaviour_logprobs, [0] * count),
            versions=inserted(segment.versions, [-1] * count),
            images=(PlacedImage(features=image, start=PROMPT),),
        )

    samples = [
        replace(one, trajectory=replace(one.trajectory, segments=tuple(map(with_image, one.trajectory.segments))))
        for one in group.samples
    ]
    return replace(group, samples=tuple(samples))


def start(workers: list[ProcessWorker], folder: str, stage: int, tower: str) -> RemoteLearner:
    config = TrainerConfig(
        updates=20,
        optimizer=OptimizerConfig(learning_rate=1e-3),
        deepspeed=DeepSpeedConfig(ranks=len(workers), zero_stage=stage, timeout_seconds=60, start_timeout_seconds=120),
    )
    learner = RemoteLearner(workers, config)
    model = ModelConfig.model_validate({"path": folder, "tower": tower})
    asyncio.run(learner.start(LearnerSettings(model_path=folder, model=model, trainer=config)))
    return learner


def gradient(workers: list[ProcessWorker], groups: list[Group], tokens: int, row_tokens: int) -> np.ndarray:
    parts = build_minibatches(
        made_batch(groups), minibatches=1, ranks=len(workers), tokens_per_microbatch=tokens, row_tokens=row_tokens
    )
    return look(workers, gradient_of, *[(part,) for part in parts])


@pytest.fixture(scope="module")
def reference(single: list[ProcessWorker], sees: str, groups: list[Group]) -> np.ndarray:
    start(single, sees, 0, "trained")
    return gradient(single, groups, *CUTS[0])


@pytest.mark.parametrize(
    ("ranks", "stage", "cut"),
    [
        (1, 0, 1),
        (1, 0, 2),
        (2, 2, 1),
        (2, 3, 1),
        pytest.param(1, 3, 1, marks=pytest.mark.slow),
        pytest.param(2, 0, 2, marks=pytest.mark.slow),
        pytest.param(2, 1, 1, marks=pytest.mark.slow),
        pytest.param(2, 3, 2, marks=pytest.mark.slow),
    ],
)
def test_the_gradient_of_model_and_tower_does_not_depend_on_the_cut(
    request: pytest.FixtureRequest,
    sees: str,
    groups: list[Group],
    reference: np.ndarray,
    ranks: int,
    stage: int,
    cut: int,
) -> None:
    workers = ranks_of(request, ranks)
    start(workers, sees, stage, "trained")
    assert off(gradient(workers, groups, *CUTS[cut]), reference) < 1e-6


def test_two_images_with_the_same_tokens_do_not_share_a_beginning(groups: list[Group], sees: str) -> None:
    """The gradient of a batch with swapped images is another."""
    batch = made_batch(groups[:1])
    reader = ImageReader(sees)
    other = reader.features(noise_image((57, 57)))
    assert other.token_ids == batch.sequences[0].images[0].features.token_ids
    swapped = replace(batch.sequences[0], images=(PlacedImage(features=other, start=PROMPT),))
    mixed = replace(batch, sequences=(swapped, *batch.sequences[1:]))
    ((own,),), ((both,),) = (
        build_minibatches(one, minibatches=1, ranks=1, tokens_per_microbatch=1000)[0] for one in (batch, mixed)
    )
    assert own.images is not None
    assert both.images is not None
    assert [len(one.images.starts) for one in (own, both)] == [1, 2]
    assert {one.image.sha256 for one in both.images.images} == {
        other.image.sha256, own.images.images[0].image.sha256
    }  # fmt: skip


@pytest.mark.parametrize(("ranks", "stage"), [(2, 2), pytest.param(2, 3, marks=pytest.mark.slow)])
def test_a_frozen_tower_sees_an_image_once_an_update(
    request: pytest.FixtureRequest, sees: str, groups: list[Group], ranks: int, stage: int
) -> None:
    workers = ranks_of(request, ranks)
    learner = start(workers, sees, stage, "frozen")
    before = [worker.inspect(computed).result(60) for worker in workers]
    asyncio.run(learner.update(groups))
    seen = [worker.inspect(computed).result(60) - one for worker, one in zip(workers, before, strict=True)]
    assert max(seen) <= 2 or stage == 3, "each rank once for each of the two images"
    assert sum(seen) >= 2


def computed(rank: Rank) -> int:
    return rank.policy.rows.vision.computed  # type: ignore[attr-defined]
