"""An engine with two workers outlasts the death of another engine in a weight sync."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from rlhf.engines.vllm.engine_worker import EngineWorker
from rlhf.engines.vllm.environment import engine_environment
from rlhf.errors import TransferError
from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.weight_sync.broadcast import BroadcastSender
from rlhf.weight_sync.weights import published_tensors
from tests.engines.vllm.made import made_settings
from tests.integration.test_senders import Wire
from tests.integration.torch_learner import TorchLearner

pytestmark = [pytest.mark.engine, pytest.mark.slow]


async def test_the_death_of_another_engine_in_a_transfer_leaves_both_workers_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (engine_environment("cpu") | {"OMP_NUM_THREADS": "1"}).items():
        monkeypatch.setenv(name, value)
    config = TinyModelConfig(architecture="qwen2", hidden_size=64, heads=2, tie_word_embeddings=False)
    folder = save_tiny(config, 0, tmp_path)
    settings = made_settings(folder, kv_cache_megabytes=16, weight_transfer="gloo", tensor_parallel_size=2)
    other, engine, learner = Wire("gloo"), EngineWorker("engine-1", settings), TorchLearner(folder, "float32")
    engine.start()
    try:
        processes = workers_of(engine)
        meeting = await learner.rendezvous(4)
        other.pipe.send(("connect", meeting))
        await asyncio.gather(learner.connect(meeting), asyncio.to_thread(engine.connect, meeting, 2))
        other.answer()
        assert [type(one) for one in await publish(learner, engine, monkeypatch, other)] == [TransferError] * 2

        learner.sender = BroadcastSender()
        meeting = await learner.rendezvous(3)
        await asyncio.gather(learner.connect(meeting), asyncio.to_thread(engine.connect, meeting, 1))
        assert not any(isinstance(one, BaseException) for one in await publish(learner, engine, monkeypatch))
        tokens = np.arange(60, 70, dtype=np.int32)
        served = engine.token_logprobs(tokens).logprobs
        assert np.abs(served - await learner.token_logprobs(tokens)).max() < 1e-4
        assert workers_of(engine) == processes
    finally:
        engine.close()
        other.stop()


def workers_of(engine: EngineWorker) -> list[int]:
    pids = engine._thread.run(lambda inner: inner._child_pids, awaited="pids", timeout_seconds=10)
    assert len(pids) == 2
    assert all(psutil.pid_exists(pid) for pid in pids)
    return pids


async def publish(
    learner: TorchLearner, engine: EngineWorker, monkeypatch: pytest.MonkeyPatch, dying: Wire | None = None
) -> list[Any]:
    """Send a changed model, and kill `dying` in the middle; how the engine and the learner ended."""

    def tensors(*arguments: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for place, tensor in enumerate(published_tensors(*arguments)):
            if dying and place == 20:
                dying.process.kill()
                time.sleep(1)
            yield tensor

    learner.update(0.05)
    manifest = await learner.manifest()
    engine.prepare(manifest)
    with monkeypatch.context() as context:
        context.setattr("rlhf.weight_sync.weights.published_tensors", tensors)
        if dying:
            dying.pipe.send(("receive", manifest))
        ended = await asyncio.gather(
            asyncio.to_thread(engine.receive, manifest), learner.send(), return_exceptions=True
        )
    if not dying:
        engine.commit(learner.version)
    return ended
