"""New weights in a live engine over gloo, while requests run, seen through the controller's side of it.

All tests share one engine; the last one breaks it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch

from rlhf.cluster.host import WorkerHost
from rlhf.cluster.local import LocalWorker
from rlhf.engines.engine import RemoteEngine
from rlhf.engines.vllm.environment import engine_environment
from rlhf.errors import TransferError, WorkerFailed
from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.types import Completion, Prompt, Sampling
from rlhf.weight_sync.broadcast import BroadcastSender
from rlhf.weight_sync.types import Manifest
from rlhf.weight_sync.weights import published_tensors
from tests.engines.vllm.made import made_settings
from tests.integration.torch_learner import TorchLearner, assert_sampled_by

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

os.environ.update(engine_environment("cpu") | {"OMP_NUM_THREADS": "1"})

TOLERANCE = 1e-4
KV_CACHE_BYTES = 16 << 20
CHANGE = 0.05
Joined = tuple[TorchLearner, RemoteEngine]


async def publish(learner: TorchLearner, engine: RemoteEngine) -> None:
    manifest = await learner.manifest()
    await engine.prepare(manifest)
    await asyncio.gather(engine.receive(manifest), learner.send())
    await engine.commit(learner.version)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def joined(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Joined]:
    config = TinyModelConfig(architecture="qwen2", hidden_size=64, heads=2, tie_word_embeddings=False)
    folder = save_tiny(config, 0, tmp_path_factory.mktemp("model"))
    worker = LocalWorker("engine-0", WorkerHost("rlhf.engines.vllm.engine_worker:EngineWorker", 8))
    settings = made_settings(folder, kv_cache_megabytes=KV_CACHE_BYTES >> 20, weight_transfer="gloo")
    await worker.construct({"name": "engine-0", "settings": settings}, 60)
    engine = RemoteEngine(worker, settings.rollout)
    await engine.start()
    learner = TorchLearner(folder, "float32")
    meeting = await learner.rendezvous(2)
    await asyncio.gather(engine.connect(meeting, 1), learner.connect(meeting))
    yield learner, engine
    learner.sender.close()
    await engine.stop()


async def answers_like(engine: RemoteEngine, learner: TorchLearner, prompt: np.ndarray) -> bool:
    served, expected = (await engine.token_logprobs(prompt)).logprobs, await learner.token_logprobs(prompt)
    return bool(np.abs(served - expected).max() < TOLERANCE)


def ask(engine: RemoteEngine, prompt: np.ndarray, seed: int) -> asyncio.Task[Completion]:
    sampling = Sampling(temperature=1.0, max_tokens=200)
    return asyncio.create_task(
        engine.generate(Prompt(token_ids=prompt), sampling=sampling, seed=seed, session=f"s{seed}")
    )


async def test_tokens_before_and_after_a_publish_have_the_logprobs_of_their_versions_weights(joined: Joined) -> None:
    learner, engine = joined
    learner.update(CHANGE)
    await publish(learner, engine)
    await engine.resume()
    prompts = [np.arange(60 + n, 70 + n, dtype=np.int32) for n in range(5)]
    asks = [ask(engine, prompt, seed) for seed, prompt in enumerate(prompts)]
    await asyncio.sleep(0.1)
    assert await answers_like(engine, learner, prompts[0])
    old = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    learner.update(CHANGE)
    await publish(learner, engine)
    assert not any(task.done() for task in asks)
    assert await answers_like(engine, learner, prompts[0])
    await engine.resume()
    replies = await asyncio.gather(*asks)
    whole = [np.concatenate([prompt, reply.token_ids]) for prompt, reply in zip(prompts, replies, strict=True)]
    scores = {2: [await learner.token_logprobs(ids) for ids in whole]}
    learner.model.load_state_dict(old)
    scores[1] = [await learner.token_logprobs(ids) for ids in whole]
    for number, reply in enumerate(replies):
        assert_sampled_by(reply, {version: found[number][9:] for version, found in scores.items()})


async def test_an_engine_that_sleeps_gives_its_memory_back_and_wakes_with_the_weights_of_a_publish(
    joined: Joined,
) -> None:
    learner, engine = joined
    await publish(learner, engine)
    await engine.resume()
    prompt, process = np.arange(60, 70, dtype=np.int32), psutil.Process()
    await ask(engine, prompt, 1)
    awake = process.memory_info().rss
    await engine.sleep()
    asleep = process.memory_info().rss
    assert awake - asleep > 0.75 * KV_CACHE_BYTES
    waiting = ask(engine, prompt, 2)
    learner.update(CHANGE)
    await publish(learner, engine)
    assert process.memory_info().rss - asleep > 0.75 * KV_CACHE_BYTES
    assert await answers_like(engine, learner, prompt)
    await engine.resume()
    reply = await waiting
    assert_sampled_by(reply, {3: (await learner.token_logprobs(np.concatenate([prompt, reply.token_ids])))[9:]})


async def test_after_a_transfer_that_its_peer_broke_off_an_engine_takes_the_next_one(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, engine = joined
    learner.update(CHANGE)

    def breaks_off(*arguments: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for place, tensor in enumerate(published_tensors(*arguments)):
            if place == 20:
                learner.sender.close()
                raise TransferError("this rank is gone")
            yield tensor

    with monkeypatch.context() as broken:
        broken.setattr("rlhf.weight_sync.weights.published_tensors", breaks_off)
        manifest = await learner.manifest()
        await engine.prepare(manifest)
        outcomes = await asyncio.gather(engine.receive(manifest), learner.send(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [TransferError, TransferError]
    learner.sender = BroadcastSender()
    meeting = await learner.rendezvous(2)
    await asyncio.gather(engine.connect(meeting, 1), learner.connect(meeting))
    await publish(learner, engine)
    assert await answers_like(engine, learner, np.arange(60, 70, dtype=np.int32))
    await engine.resume()


async def test_a_manifest_that_leaves_a_tensor_out_is_refused_before_any_byte_moves(joined: Joined) -> None:
    learner, engine = joined
    tensors = tuple(spec for spec in (await learner.manifest()).tensors if "k_proj.weight" not in spec.name)
    with pytest.raises(
        WorkerFailed, match=r"no tensor fills \['model\.layers\.0\.self_attn\.qkv_proj\.weight \(75% of it\)'"
    ):
        await engine.prepare(Manifest(tensors=tensors))
