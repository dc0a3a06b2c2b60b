"""An episode with an image every turn on a real engine: what was said is what is trained, image by image."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch

from rlhf.chat.image_reader import ImageReader
from rlhf.chat.renderer import ChatRenderer
from rlhf.cluster.host import WorkerHost
from rlhf.cluster.local import LocalWorker
from rlhf.engines.engine import RemoteEngine
from rlhf.engines.vllm.environment import engine_environment
from rlhf.errors import EnvironmentFailed, ModelError
from rlhf.images import IMAGE_MARK, RowImages, in_each_row
from rlhf.models.config import TinyModelConfig
from rlhf.models.loading import load_policy, load_tokenizer
from rlhf.models.policy import PolicyModel, WholeRows
from rlhf.models.tiny import save_tiny
from rlhf.models.vision import Vision
from rlhf.rollout.episode import PolicyClient
from rlhf.types import Completion, Message, Observation, Prompt, Sampling, Segment, Trajectory
from tests.engines.vllm.made import made_settings
from tests.env.environments import picture
from tests.rollout.playing import TASK, ScriptedEnvironment, play_alone, rules

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

os.environ.update(engine_environment("cpu") | {"OMP_NUM_THREADS": "1"})
TURNS = 8
SHAPE = TinyModelConfig(
    architecture="qwen3_vl", hidden_size=64, intermediate_size=128, heads=2, kv_heads=1, max_position_embeddings=1024
)
ENDS = tuple(range(100, 160))
"""Tokens that end a reply, so that a model with random weights ends its replies."""


def shows(number: int) -> Message:
    return Message(role="user", content=f"now {IMAGE_MARK}?", images=(picture(number, 56 + 28 * (number % 3)),))


class Listening:
    """An engine that keeps what it was asked and what it said."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine, self.asked, self.said = engine, list[Prompt](), list[Completion]()

    async def generate(self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str) -> Completion:
        self.asked.append(prompt)
        self.said.append(await self._engine.generate(prompt, sampling=sampling, seed=seed, session=session))
        return self.said[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(SHAPE, 0, tmp_path_factory.mktemp("seeing"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[RemoteEngine]:
    worker = LocalWorker("engine-0", WorkerHost("rlhf.engines.vllm.engine_worker:EngineWorker", 8))
    settings = made_settings(folder, tower="frozen", kv_cache_megabytes=32, max_sequences=4, stop_token_ids=ENDS)
    await worker.construct({"name": "engine-0", "settings": settings}, 60)
    started = RemoteEngine(worker, settings.rollout)
    await started.start()
    yield started
    await started.stop()


async def played(engine: Listening, folder: Path, *messages: Message) -> tuple[Trajectory, ChatRenderer]:
    renderer = ChatRenderer(load_tokenizer(str(folder)), images=ImageReader(str(folder)))
    its = PolicyClient(
        engine=engine, renderer=renderer, sampling=Sampling(max_tokens=64), max_context_tokens=1024, session="s",
        seed_of=lambda turn: turn,
    )  # fmt: skip
    environment = ScriptedEnvironment(*(Observation(messages=(message,)) for message in messages))
    outcome = await play_alone(TASK, its, environment, seed=0, rules=rules(max_turns=TURNS, timeout_seconds=60))
    assert isinstance(outcome, Trajectory), outcome
    return outcome, renderer


def learned(folder: Path, segment: Segment, images: RowImages | None) -> np.ndarray:
    model = PolicyModel(load_policy(str(folder)), WholeRows(Vision(frozen=True)))
    ids, targets = torch.from_numpy(segment.token_ids).long(), torch.from_numpy(np.flatnonzero(segment.action_mask))
    with torch.no_grad():
        logprobs, _ = model(ids[None], torch.arange(len(ids))[None], targets - 1, targets, 1.0, images=images)
    return logprobs.numpy()


async def test_an_image_every_turn_is_one_segment_that_the_learner_reads_as_sampled(
    engine: RemoteEngine, folder: Path
) -> None:
    listening = Listening(engine)
    trajectory, renderer = await played(listening, folder, *map(shows, range(TURNS + 1)))
    [segment] = trajectory.segments
    assert [one.features.image for one in segment.images] == [shows(n).images[0] for n in range(TURNS + 1)]
    assert len(segment.turns) == len(listening.asked) == TURNS
    prompts = [*(prompt.token_ids for prompt in listening.asked), segment.token_ids]
    for turn, (before, after, said) in enumerate(zip(prompts, prompts[1:], listening.said, strict=False)):
        increment = renderer.increment([shows(turn + 1)], int(said.token_ids[-1]))
        [placed] = increment.images
        assert set(placed.features.token_ids) <= set(increment.token_ids[placed.start : placed.stop].tolist())
        assert after.tolist() == [*before.tolist(), *said.token_ids.tolist(), *increment.token_ids.tolist()]
    images = in_each_row(segment.images, 1, len(segment.token_ids))
    assert images is not None
    sampled = segment.behaviour_logprobs[segment.action_mask]
    assert np.abs(learned(folder, segment, images) - sampled).max() < 1e-4
    other = replace(images, images=(images.images[3], *images.images[1:]))  # of the same size as the first
    assert np.abs(learned(folder, segment, other) - sampled).max() > 1e-3
    lost = RowImages(images=images.images[:3], starts=images.starts[:3])
    with pytest.raises(ModelError, match=r"rows have \d+ tokens of images, but their 3 images have \d+"):
        learned(folder, segment, lost)


async def test_an_image_that_is_lost_after_three_turns_is_refused_by_name(engine: RemoteEngine, folder: Path) -> None:
    lost = replace(shows(3), images=())
    with pytest.raises(EnvironmentFailed, match=r"0 images, and 1 places for them \(U\+FFFC\); its role is user"):
        await played(Listening(engine), folder, *map(shows, range(3)), lost)
