"""Asynchronous scheduling, as vLLM has it on GPUs, emulated on a CPU: a step is always in flight, across pauses too.

vLLM turns it off on a CPU. Here it is turned on again after that, and CUDA's streams and events do nothing: scheduler,
queue of batches and engine are those that GPUs have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from rlhf.engines.vllm.engine_worker import import_engine
from rlhf.engines.vllm.environment import engine_environment
from rlhf.engines.vllm.process import undisturbed_process
from rlhf.engines.vllm.settings import GenerateRequest
from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.types import Completion
from rlhf.weight_sync.types import Manifest
from tests.engines.vllm.made import made_settings

if TYPE_CHECKING:
    from rlhf.engines.vllm.vllm_engine import VllmEngine

pytestmark = pytest.mark.engine

os.environ.update(engine_environment("cpu") | {"OMP_NUM_THREADS": "1"})

NOTHING = Manifest(tensors=())
CANARY = np.arange(70, 80, dtype=np.int32)
REQUESTS = [
    GenerateRequest(f"r{n}", np.arange(60 + n, 69 + n, dtype=np.int32), temperature=1, max_tokens=12 + 4 * n, seed=n)
    for n in range(4)
]
STEPS = 10


@contextmanager
def asynchronous() -> Iterator[None]:
    """From here on vLLM schedules asynchronously on a CPU."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def turned_on(config: object) -> None:
        check(config)
        config.scheduler_config.async_scheduling = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuPlatform, "check_and_update_config", staticmethod(turned_on))
        patch.setattr(torch.cuda, "Event", lambda **named: SimpleNamespace(record=lambda: 0, synchronize=lambda: 0))
        patch.setattr(torch.cuda, "current_stream", lambda: None)
        patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        yield


@contextmanager
def started(model: Path) -> Iterator[VllmEngine]:
    with undisturbed_process():
        import_engine()
        from rlhf.engines.vllm.vllm_engine import VllmEngine

        engine = VllmEngine(made_settings(model, kv_cache_megabytes=32, stop_token_ids=(40,)))
    try:
        yield engine
    finally:
        engine.close()


def sharpen(model: nn.Module) -> None:
    """Other weights: logits of twice the size."""
    model.model.norm.weight.data.mul_(2)


def play(engine: VllmEngine) -> tuple[dict[str, Completion], Sequence[np.ndarray]]:
    """Replies that get other weights, and a canary's log-probs, while they are in flight."""
    for request in REQUESTS:
        engine.add(request)
    replies = {name: reply for _ in range(STEPS) for name, reply in engine.step().items()}
    engine.prepare(NOTHING)
    old = engine.token_logprobs(CANARY, timeout_seconds=60).logprobs
    engine._engine.apply_model(sharpen)
    engine.commit(1)
    new = engine.token_logprobs(CANARY, timeout_seconds=60).logprobs
    engine.resume()
    while engine.busy:
        replies |= engine.step()
    return replies, (old, new)


def test_a_pause_with_a_step_in_flight_gives_the_same_tokens_and_versions_as_without(tmp_path: Path) -> None:
    model = save_tiny(TinyModelConfig(hidden_size=64, intermediate_size=128, max_position_embeddings=96), 0, tmp_path)
    with started(model) as engine:
        expected, scores = play(engine)
    with asynchronous(), started(model) as engine:
        assert engine._core.batch_queue is not None, "a step is in flight"
        replies, seen = play(engine)
    assert set(replies) == {request.id for request in REQUESTS}
    for name, reply in replies.items():
        assert reply.token_ids.tolist() == expected[name].token_ids.tolist()
        assert reply.versions.tolist() == expected[name].versions.tolist()
        np.testing.assert_allclose(reply.behaviour_logprobs, expected[name].behaviour_logprobs, atol=1e-5)
    np.testing.assert_allclose(np.array(seen), np.array(scores), atol=1e-5)
    versions = [version for reply in replies.values() for version in reply.versions.tolist()]
    assert versions.count(-1) == STEPS * len(REQUESTS), "what was in flight at the pause is kept"
    assert versions.count(1) > 0
