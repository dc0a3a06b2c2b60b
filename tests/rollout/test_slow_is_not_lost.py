"""Replies that pass their time are trained with what they had said: the lengths that are trained are those at the cut.

Loop, buffer, groups and the controller's side of an engine are real; the engine behind them says one token a tick of a
clock of its own, and is paused by every publish.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf.rollout.config import RolloutConfig
from rlhf.rollout.engine import RemoteEngine
from rlhf.rollout.group import GroupRollout
from rlhf.rollout.vllm.settings import GenerateRequest
from rlhf.trainer.algorithms.statistics import batch_statistics
from rlhf.trainer.buffer import TicketBuffer
from rlhf.trainer.loop import Loop
from rlhf.types import Completion, EpisodeStatus, FinishReason, Group, Sampling, Updated
from rlhf.weight_sync.types import Manifest
from tests.fakes import FakeLearner, FakeRenderer, FakeReward, FakeTasks
from tests.trainer.test_loop import Boundary

BUDGET_SECONDS, TOKENS_A_SECOND, PAUSE_SECONDS = 0.25, 800.0, 0.4
GROUPS, SIZE, UPDATES = 64, 8, 10
SLOW_SHARE = 0.2
MEAN_TOKENS = BUDGET_SECONDS * TOKENS_A_SECOND / -np.log(SLOW_SHARE)


class TickingWorker:
    """Requests of exponential lengths, of which a fifth needs more than the budget. `said` are the lengths at the end
    of every one, or at its cut."""

    name = "engine-0"

    def __init__(self) -> None:
        self.said: dict[str, int] = {}
        self._rng = np.random.default_rng(0)
        self._began: dict[str, tuple[GenerateRequest, int, float]] = {}
        self._outbox: dict[str, Completion] = {}
        self._paused_at: float | None = None
        self._paused_seconds = 0.0

    @property
    def _now(self) -> float:
        return (self._paused_at or time.monotonic()) - self._paused_seconds

    async def call(self, method: str, *args: Any, timeout_seconds: float) -> Any:
        return await getattr(self, f"_{method}")(*args)

    async def _submit(self, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            tokens = 2 + int(self._rng.exponential(MEAN_TOKENS))
            self._began[request.id] = (request, tokens, self._now)

    async def _collect(self, seconds: float) -> dict[str, Completion]:
        await asyncio.sleep(0.01)
        for request_id, (_, tokens, _) in tuple(self._began.items()):
            if self._spoken(request_id) >= tokens:
                self._end(request_id, tokens, FinishReason.STOP)
        outbox, self._outbox = self._outbox, {}
        return outbox

    async def _cut_off(self, ids: Sequence[str]) -> None:
        for request_id in ids:
            if request_id in self._began:
                self._end(request_id, min(self._spoken(request_id), self._began[request_id][1]), FinishReason.TIME)

    async def _abort(self, ids: Sequence[str]) -> None:
        for request_id in ids:
            if request_id in self._began:
                self.said[request_id] = self._spoken(request_id)
                del self._began[request_id]

    async def _prepare(self, names: Sequence[str]) -> None:
        self._paused_at = time.monotonic()

    async def _resume(self) -> None:
        assert self._paused_at is not None
        self._paused_seconds += time.monotonic() - self._paused_at
        self._paused_at = None

    def _spoken(self, request_id: str) -> int:
        return int((self._now - self._began[request_id][2]) * TOKENS_A_SECOND)

    def _end(self, request_id: str, tokens: int, reason: FinishReason) -> None:
        del self._began[request_id]
        self.said[request_id] = tokens
        logprobs, versions = np.full(tokens, -0.5, np.float32), np.zeros(tokens, np.int32)
        self._outbox[request_id] = Completion(
            token_ids=np.full(tokens, 3, np.int32), logprobs=logprobs, versions=versions, finish_reason=reason
        )


class PublishingLearner(FakeLearner):
    """Keeps what it trains. Every publish takes longer than a reply may, in the middle of replies."""

    def __init__(self, engine: RemoteEngine) -> None:
        super().__init__()
        self._engine = engine
        self.trained: list[Group] = []

    async def update(self, groups: Sequence[Group]) -> Updated:
        self.trained.extend(groups)
        return await super().update(groups)

    async def publish(self) -> int:
        await self._engine.prepare(Manifest(tensors=()))
        await asyncio.sleep(PAUSE_SECONDS if self.version in (1, 2) else 0)
        await self._engine.resume()
        return self.version


async def test_the_lengths_that_are_trained_are_those_at_the_cut() -> None:
    worker = TickingWorker()
    engine = RemoteEngine(worker, RolloutConfig(max_sequences=4096, generate_timeout_seconds=BUDGET_SECONDS))
    learner = PublishingLearner(engine)
    rollout = GroupRollout(
        engine=engine, renderer=FakeRenderer(), reward=FakeReward(*[1.0, 0.0] * (SIZE // 2)), group_size=SIZE,
        sampling=Sampling(max_tokens=100_000), max_context_tokens=200_000, run_seed=0,
    )  # fmt: skip
    buffer = TicketBuffer(
        groups_per_update=GROUPS, max_staleness=1, updates=UPDATES, refill_groups=0, failure_budget=0.0
    )
    loop = Loop(
        tasks=FakeTasks(), rollout=rollout, buffer=buffer, learner=learner, weights=learner,
        max_concurrent_groups=2 * GROUPS,
    )  # fmt: skip
    await loop.run(UPDATES, Boundary())
    trained = [trajectory for group in learner.trained for _, trajectory, _ in group.trainable]
    said = np.sort(np.array(list(worker.said.values())))
    lengths = np.sort(np.array([trajectory.action_tokens for trajectory in trained]))
    assert len(lengths) == len(said) == GROUPS * SIZE * UPDATES > 5000
    assert kolmogorov_smirnov(lengths, said) == 0.0, "every episode that was begun is trained with what it had said"
    assert buffer.lost_samples == 0
    slow = [trajectory for trajectory in trained if trajectory.out_of_time]
    assert {trajectory.status for trajectory in slow} == {EpisodeStatus.TRUNCATED}
    assert 0.02 < len(slow) / len(trained) < 0.3, "pauses of publishes are not charged"
    # The median: when the machine stands still for a moment, some have less.
    assert np.median([trajectory.action_tokens for trajectory in slow]) > 0.9 * BUDGET_SECONDS * TOKENS_A_SECOND
    assert batch_statistics(learner.trained, version=0)["response/out_of_time"] == len(slow) / len(trained)


def kolmogorov_smirnov(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of two samples' distributions."""
    places = np.concatenate([one, other])
    shares = [np.searchsorted(np.sort(values), places, side="right") / len(values) for values in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())
