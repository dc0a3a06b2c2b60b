"""A whole run with real parts of the controller, and stand-ins of what computes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from benchmarks.controller.stand_ins import AnsweringRank, PublishedAtOnce, SleepingEngine
from rlhf.chat.renderer import ChatRenderer
from rlhf.controller.episode_log import EpisodeLog
from rlhf.controller.event_loop_latency import responsive_event_loop
from rlhf.controller.user_messages import BatchNotices, LossNotices, OpeningNotices, SampleEpisodes, SignalNotices
from rlhf.engines.config import RolloutConfig
from rlhf.engines.engine import RemoteEngine
from rlhf.engines.router import Router
from rlhf.env.hosting.hosted import HostedEnvironments, isolation_of
from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.models.tiny import byte_tokenizer
from rlhf.protocols import WeightSync
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import make_reward
from rlhf.rollout.episode import AnswerOnce, EpisodeRunner
from rlhf.rollout.group import GroupRollout
from rlhf.rollout.turns import TurnRules, WithEnvironment
from rlhf.runs.folder import RunFolder
from rlhf.tracing import CURRENT, Clock, CurrentSpan
from rlhf.trainer.buffer import TicketBuffer
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.loop import Loop
from rlhf.types import Failed, Filtered, Group, Message, PolicyVersion, Sampling, Task, Ticket, Updated

RANKS = 2
TICK_SECONDS = 0.002
DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a run plays: `groups` of `group` episodes an update, `in_flight` of them at once. A reply of `tokens` tokens
    comes after `seconds`; with `turns` there is an environment of that many."""

    groups: int
    tokens: int
    updates: int = 3
    group: int = 8
    in_flight: int = 64
    engines: int = 8
    prompt: int = 256
    turns: int = 0
    seconds: float = 0.02
    staleness: int = 1

    @property
    def samples(self) -> int:
        return self.updates * self.groups * self.group


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Seconds of the processor, all threads together, and how long the event loop was busy at a stretch while the
    learner updated."""

    processor: float
    gaps: tuple[float, ...]

    def lag(self, share: float) -> float:
        """Return the seconds that this share of what arrived at random moments waited at most for the loop."""
        waits = np.concatenate([np.arange(0, gap, TICK_SECONDS / 10) for gap in self.gaps])
        return float(np.quantile(waits, share))


class Tasks:
    """Task n asks a question of so many characters that no other task asks."""

    def __init__(self, characters: int) -> None:
        self._filler = "why " * (characters // 4)

    def __getitem__(self, ordinal: int) -> Task:
        return Task(id=str(ordinal), messages=(Message(role="user", content=f"{ordinal} {self._filler}"),), answer="A")

    def settled(self, ordinal: int, outcome: Group | Filtered | Failed) -> None: ...

    def advance(self, trained: int) -> None: ...


class WatchedLearner(RemoteLearner):
    """Notes the times of the event loop's turns during updates."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.gaps: list[float] = []

    async def update(self, groups: Sequence[Group]) -> Updated:
        ticking = asyncio.ensure_future(tick(self.gaps))
        await asyncio.sleep(0)
        try:
            return await super().update(groups)
        finally:
            await asyncio.sleep(0)
            ticking.cancel()


class NotingLog(EpisodeLog):
    """Looks at groups as a run does."""

    def __init__(self, folder: RunFolder, samples: int) -> None:
        super().__init__(folder, samples)
        self._losses = LossNotices(lambda words: None, folder.logs)
        batches = (OpeningNotices(lambda words: None), SignalNotices(lambda words: None, siblings=True))
        self._notices: tuple[BatchNotices, ...] = (*batches, SampleEpisodes())

    def settled(self, ticket: Ticket, outcome: Group | Filtered | Failed, *, kept: bool) -> None:
        super().settled(ticket, outcome, kept=kept)
        self._losses.notice(outcome)

    def trained(self, groups: Sequence[Group], updated: Updated, update: PolicyVersion) -> None:
        super().trained(groups, updated, update)
        for notices in self._notices:
            notices.notice(update, groups, updated.metrics)


async def tick(gaps: list[float]) -> None:
    before = time.perf_counter()
    while True:
        await asyncio.sleep(TICK_SECONDS)
        gaps.append(time.perf_counter() - before)
        before += gaps[-1]


@dataclass(frozen=True, kw_only=True)
class StandIns:
    """What computes in a run. `weights` makes the weight sync of the learner and the engines."""

    engines: Sequence[SleepingEngine]
    ranks: Sequence[AnsweringRank]
    weights: Callable[[RemoteLearner, Sequence[RemoteEngine]], WeightSync]
    play: EpisodeRunner


@dataclass(frozen=True)
class Whole:
    """The parts of a run."""

    loop: Loop
    clock: Clock
    log: EpisodeLog
    workers: Sequence[SleepingEngine]
    learner: WatchedLearner


@asynccontextmanager
async def whole(load: Load, folder: Path) -> AsyncIterator[Whole]:
    """Yield a run that has not begun, whose ranks and weight sync take no time."""
    workers = [SleepingEngine(f"engine-{n}", load.seconds) for n in range(load.engines)]
    ranks = [AnsweringRank(f"learner-{n}") for n in range(RANKS)]
    async with player(load) as play:
        parts = StandIns(
            engines=workers, ranks=ranks, play=play, weights=lambda learner, *_: PublishedAtOnce(learner, workers)
        )
        async with assembled(load, folder, parts) as made:
            yield made


@asynccontextmanager
async def assembled(load: Load, folder: Path, parts: StandIns) -> AsyncIterator[Whole]:
    """Yield a run of these parts that has not begun."""
    place, clock = RunFolder.create(folder), Clock()
    config = RolloutConfig(generate_timeout_seconds=DAY)
    engines = [RemoteEngine(worker, config) for worker in parts.engines]
    await asyncio.gather(*(engine.start() for engine in engines))
    trainer = TrainerConfig(
        groups_per_update=load.groups, group_size=load.group, updates=load.updates, max_staleness=load.staleness
    )
    learner = WatchedLearner(parts.ranks, trainer, max_tokens=load.tokens, plays=True)
    buffer = TicketBuffer(
        groups_per_update=load.groups, max_staleness=load.staleness, updates=load.updates, refill_groups=0,
        failure_budget=0.5,
    )  # fmt: skip
    reward = make_reward(RewardConfig(kind="environment" if load.turns else "exact"))
    log = NotingLog(place, load.group)
    CURRENT.set(CurrentSpan(clock))
    rollout = GroupRollout(
        engine=Router(engines), renderer=ChatRenderer(byte_tokenizer()), reward=reward,
        sampling=Sampling(max_tokens=load.tokens), group_size=load.group, max_context_tokens=1 << 20, run_seed=0,
        play=parts.play,
    )  # fmt: skip
    loop = Loop(
        tasks=Tasks(load.prompt),
        rollout=rollout,
        buffer=buffer,
        learner=learner,
        weights=parts.weights(learner, engines),
        max_concurrent_groups=load.in_flight,
        log=log,
    )
    try:
        yield Whole(loop, clock, log, parts.engines, learner)
    finally:
        log.close()
        for engine in engines:
            await engine.stop()
        place.give_back()


@asynccontextmanager
async def player(load: Load) -> AsyncIterator[EpisodeRunner]:
    """Yield what plays an episode; the environment runs on the event loop."""
    if not load.turns:
        yield AnswerOnce()
        return
    factory = Factory(name="benchmarks.controller.stand_ins:Turns", arguments={"turns": load.turns})
    isolation = isolation_of("thread", factory, Deadlines())
    await isolation.start()
    environments = HostedEnvironments(isolation, max_sessions=1 << 20, wait_seconds=DAY)
    rules = TurnRules(environment="turns", max_turns=load.turns, timeout_seconds=DAY)
    yield WithEnvironment(environments=environments, rules=rules)
    await isolation.stop()


async def never(version: PolicyVersion, updated: Updated | None) -> bool:
    return False


def seen(load: Load) -> Seen:
    """Play a run to its end, and return what it took."""

    async def run() -> Seen:
        with TemporaryDirectory() as scratch:
            async with whole(load, Path(scratch) / "run") as parts:
                began = time.process_time()
                with responsive_event_loop():
                    await parts.loop.run(load.updates, never)
                await parts.log.written()
                spent = time.process_time() - began
            return Seen(processor=spent, gaps=tuple(parts.learner.gaps))

    return asyncio.run(run())


def resident_bytes(sessions: int, load: Load) -> int:
    """Return the memory that so many sessions take whose replies are awaited."""
    groups = sessions // load.group
    waiting = replace(load, groups=groups, in_flight=groups, updates=1, seconds=DAY)

    async def run() -> int:
        with TemporaryDirectory() as scratch:
            async with whole(waiting, Path(scratch) / "run") as parts:
                before = resident()
                running = asyncio.ensure_future(parts.loop.run(1, never))
                await until(lambda: sum(worker.taken for worker in parts.workers) == sessions, running)
                taken = resident() - before
                running.cancel()
                await asyncio.wait([running])
            return taken

    return asyncio.run(run())


async def until(reached: Callable[[], bool], running: asyncio.Future[None]) -> None:
    deadline = time.monotonic() + 600
    while not reached() and time.monotonic() < deadline and not running.done():
        await asyncio.sleep(0.2)
    assert reached(), f"not all sessions have come: {running}"


def resident() -> int:
    return int(psutil.Process(os.getpid()).memory_info().rss)
