"""New weights in a live engine over gloo, while requests run, seen through the controller's side of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlhf.cluster.host import WorkerHost
from rlhf.cluster.local import LocalWorker
from rlhf.errors import WorkerFailed
from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.rollout.engine import RemoteEngine
from rlhf.rollout.vllm.environment import engine_environment
from rlhf.types import Completion, Prompt, Sampling
from rlhf.weight_sync.broadcast import BroadcastSender
from rlhf.weight_sync.perturbation import add_noise
from rlhf.weight_sync.types import Manifest, TensorSpec
from tests.weight_sync.transports import rendezvous

pytestmark = pytest.mark.engine

os.environ.update(engine_environment("cpu") | {"OMP_NUM_THREADS": "1"})

TOLERANCE = 1e-4
KV_CACHE_BYTES = 16 << 20


@dataclass
class Learner:
    """A plain torch model that sends its weights."""

    model: PreTrainedModel
    sender: BroadcastSender

    @property
    def manifest(self) -> Manifest:
        return Manifest(
            tensors=tuple(
                TensorSpec(name=name, dtype="float32", shape=tuple(parameter.shape))
                for name, parameter in self.model.named_parameters()
            )
        )

    def change(self, seed: int) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                add_noise(name, parameter, seed=seed)

    def send(self) -> None:
        self.sender.send(((name, p.detach()) for name, p in self.model.named_parameters()), self.manifest)

    def logprobs(self, token_ids: np.ndarray) -> np.ndarray:
        """`[T - 1]` of tokens 1..T-1."""
        ids = torch.tensor(token_ids.astype(np.int64))
        with torch.no_grad():
            logprobs = torch.log_softmax(self.model(ids[None]).logits[0, :-1], dim=-1)
        return logprobs.gather(-1, ids[1:, None])[:, 0].numpy()


async def publish(learner: Learner, engine: RemoteEngine, version: int) -> None:
    await engine.prepare(learner.manifest)
    await asyncio.gather(engine.receive(learner.manifest), asyncio.to_thread(learner.send))
    await engine.commit(version)


@pytest.fixture(
    params=[("qwen2", True), ("qwen2", False), ("llama", True)], ids=["qwen2-tied", "qwen2-untied", "llama"]
)
async def joined(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Learner, RemoteEngine]]:
    architecture, tied = request.param
    config = TinyModelConfig(architecture=architecture, hidden_size=64, heads=2, tie_word_embeddings=tied)
    save_tiny(config, 0, tmp_path)
    worker = LocalWorker("engine-0", WorkerHost("rlhf.rollout.vllm.engine_worker:EngineWorker", 8))
    settings = {"model": str(tmp_path), "kv_cache_megabytes": KV_CACHE_BYTES >> 20, "weight_transfer": "gloo"}
    await worker.construct({"name": "engine-0", "settings": settings}, 60)
    engine = RemoteEngine(worker)
    await engine.start()
    learner = Learner(AutoModelForCausalLM.from_pretrained(tmp_path), BroadcastSender())
    meeting = rendezvous(2)
    await asyncio.gather(engine.connect(meeting, 1), asyncio.to_thread(learner.sender.connect, meeting))
    yield learner, engine
    learner.sender.close()
    await engine.stop()


async def test_tokens_before_and_after_a_publish_have_the_logprobs_of_their_versions_weights(
    joined: tuple[Learner, RemoteEngine],
) -> None:
    learner, engine = joined
    learner.change(seed=1)
    await publish(learner, engine, 1)
    await engine.resume()
    prompts = [np.arange(60 + n, 70 + n, dtype=np.int32) for n in range(5)]
    asks = [ask(engine, prompt, seed) for seed, prompt in enumerate(prompts)]
    await asyncio.sleep(0.1)
    old = [learner.logprobs(prompt) for prompt in prompts]
    assert np.abs((await engine.token_logprobs(prompts[0])).logprobs - old[0]).max() < TOLERANCE

    before = Learner(type(learner.model)(learner.model.config), learner.sender)
    before.model.load_state_dict(learner.model.state_dict())
    learner.change(seed=2)
    await publish(learner, engine, 2)
    assert not any(task.done() for task in asks)
    assert np.abs((await engine.token_logprobs(prompts[0])).logprobs - learner.logprobs(prompts[0])).max() < TOLERANCE
    await engine.resume()

    for prompt, completion in zip(prompts, await asyncio.gather(*asks), strict=True):
        assert set(completion.versions.tolist()) == {1, 2}
        assert_logprobs(prompt, completion, {1: before, 2: learner})


def ask(engine: RemoteEngine, prompt: np.ndarray, seed: int) -> asyncio.Task[Completion]:
    sampling = Sampling(temperature=1.0, max_tokens=200)
    return asyncio.create_task(
        engine.generate(Prompt(token_ids=prompt), sampling=sampling, seed=seed, session=f"s{seed}")
    )


def assert_logprobs(prompt: np.ndarray, completion: Completion, learners: dict[int, Learner]) -> None:
    whole = np.concatenate([prompt, completion.token_ids])
    for version, learner in learners.items():
        expected = learner.logprobs(whole)[len(prompt) - 1 :]
        sampled = completion.versions == version
        assert np.abs(expected - completion.logprobs)[sampled].max() < TOLERANCE
        assert np.abs(expected - completion.logprobs)[~sampled].max() > 100 * TOLERANCE


@pytest.mark.parametrize("joined", [("qwen2", True)], indirect=True)
async def test_a_manifest_that_leaves_a_tensor_out_is_refused_before_any_byte_moves(
    joined: tuple[Learner, RemoteEngine],
) -> None:
    learner, engine = joined
    tensors = tuple(tensor for tensor in learner.manifest.tensors if "k_proj.weight" not in tensor.name)
    with pytest.raises(
        WorkerFailed, match=r"not be sent \['model\.layers\.0\.self_attn\.qkv_proj\.weight \(75% of it\)'"
    ):
        await engine.prepare(Manifest(tensors=tensors))


@pytest.mark.parametrize("joined", [("qwen2", False)], indirect=True)
async def test_an_engine_that_sleeps_gives_its_memory_back_and_wakes_with_the_weights_of_a_publish(
    joined: tuple[Learner, RemoteEngine],
) -> None:
    learner, engine = joined
    await publish(learner, engine, 1)
    await engine.resume()
    prompt, process = np.arange(60, 70, dtype=np.int32), psutil.Process()
    await ask(engine, prompt, 1)
    awake = process.memory_info().rss
    await engine.sleep()
    asleep = process.memory_info().rss
    assert awake - asleep > 0.75 * KV_CACHE_BYTES
    waiting = ask(engine, prompt, 2)
    learner.change(seed=3)
    await publish(learner, engine, 2)
    assert process.memory_info().rss - asleep > 0.75 * KV_CACHE_BYTES
    assert np.abs((await engine.token_logprobs(prompt)).logprobs - learner.logprobs(prompt)).max() < TOLERANCE
    await engine.resume()
    completion = await waiting
    assert set(completion.versions.tolist()) == {2}
    expected = learner.logprobs(np.concatenate([prompt, completion.token_ids]))[len(prompt) - 1 :]
    assert np.abs(expected - completion.logprobs).max() < TOLERANCE
