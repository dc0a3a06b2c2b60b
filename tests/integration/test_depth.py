"""How many of our calls a debugger shows above the backward pass of an update, and above the `add` of a reply."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import rlhf
from rlhf.cluster.host import WorkerHost
from rlhf.cluster.local import LocalWorker
from rlhf.engines.engine import RemoteEngine
from rlhf.engines.router import Router
from rlhf.engines.vllm.environment import engine_environment
from rlhf.models.config import ModelConfig, TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.rollout.group import GroupRollout
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.loop import Loop
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import Group, Sampling, Ticket, Updated
from tests.engines.vllm.made import made_settings
from tests.fakes import TASK, FakeLearner, FakeRenderer, FakeReward, FakeRollout, FakeTasks
from tests.pace import scaled
from tests.trainer.made import made_groups
from tests.warm.calls import WarmCalls

pytestmark = pytest.mark.engine

OURS = str(Path(rlhf.__file__).parent)
Seen = list[list[str]]


def frames_of(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    awaited: Any = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        yield frame
        awaited = awaited.cr_await


def our_calls(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Every call of `rlhf` that runs or waits in this process, in tasks and in threads: of one piece of work."""
    time.sleep(0.2)  # until the event loop waits, too
    waiting = [frame for task in asyncio.all_tasks(loop) for frame in frames_of(task)]
    threads = [top for thread, top in sys._current_frames().items() if thread != threading.main_thread().ident]
    running = [frame for top in threads for frame, _ in traceback.walk_stack(top)]
    codes: list[CodeType] = [frame.f_code for frame in (*waiting, *running)]
    return [code.co_qualname for code in codes if code.co_filename.startswith(OURS)]


def noting(function: Callable[..., Any], seen: Seen, loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    def noted(*arguments: Any, **named: Any) -> Any:
        seen.append(our_calls(loop))
        return function(*arguments, **named)

    return noted


class OneBatch:
    """A `Buffer` with the groups of one update."""

    async def take(self) -> list[Group]:
        return made_groups(2, 2)

    def advance(self, version: int) -> None: ...


async def calls_of_an_update(folder: str) -> list[str]:
    worker = LocalWorker("learner-0", WorkerHost("rlhf.trainer.rank.learner_worker:LearnerWorker", 1))
    await worker.construct({"loopback": True}, scaled(60))
    config = TrainerConfig(groups_per_update=2, group_size=2)
    learner = RemoteLearner([worker], config)
    model = ModelConfig(path=folder, dtype="float32")
    await learner.start(LearnerSettings(model_path=folder, model=model, trainer=config))
    loop = Loop(
        tasks=FakeTasks(), rollout=FakeRollout(), buffer=OneBatch(), learner=learner, weights=FakeLearner(),  # type: ignore[arg-type]
        max_concurrent_groups=0,
    )  # fmt: skip

    async def ends(version: int, updated: Updated | None) -> bool:
        return True

    from deepspeed import DeepSpeedEngine

    seen: Seen = []
    DeepSpeedEngine.backward = noting(DeepSpeedEngine.backward, seen, asyncio.get_running_loop())
    await loop.learn(1, ends)
    return seen[0]


async def calls_of_a_reply(folder: str) -> list[str]:
    os.environ.update(engine_environment("cpu"))
    worker = LocalWorker("engine-0", WorkerHost("rlhf.engines.vllm.engine_worker:EngineWorker", 8))
    settings = made_settings(folder, kv_cache_megabytes=16)
    await worker.construct({"name": "engine-0", "settings": settings}, scaled(60))
    engine = RemoteEngine(worker, settings.rollout)
    await engine.start()
    rollout = GroupRollout(
        engine=Router([engine]), renderer=FakeRenderer(), reward=FakeReward(1.0), sampling=Sampling(max_tokens=2),
        group_size=1, max_context_tokens=64, run_seed=0,
    )  # fmt: skip
    from rlhf.engines.vllm.vllm_engine import VllmEngine

    seen: Seen = []
    VllmEngine.add = noting(VllmEngine.add, seen, asyncio.get_running_loop())  # type: ignore[method-assign]
    await rollout(TASK, Ticket(ordinal=0, version=0))
    await engine.stop()
    return seen[0]


@pytest.mark.parametrize(
    ("calls", "first", "most"),
    [(calls_of_an_update, "Loop.learn", 9), (calls_of_a_reply, "GroupRollout.__call__", 10)],
)
def test_an_update_and_a_reply_are_few_calls_deep(
    calls: Callable[[str], Coroutine[Any, Any, list[str]]], first: str, most: int, tmp_path: Path
) -> None:
    config = TinyModelConfig(architecture="qwen2", hidden_size=64, heads=2)
    folder = str(save_tiny(config, 0, tmp_path))
    process = WarmCalls()
    try:
        found = process.submit(calls, folder).result(timeout=scaled(300))
    finally:
        process.end()
    assert first in found
    assert len(found) <= most, found
