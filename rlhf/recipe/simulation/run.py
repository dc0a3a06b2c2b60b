"""Run the training loop on a simulated clock."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhf.recipe.simulation.clock import Cores, SimulatedLoop
from rlhf.recipe.simulation.parts import (
    TASK,
    SampledBy,
    SimulatedEngine,
    SimulatedLearner,
    SimulatedRollout,
    SimulatedUpdate,
    sampled_tokens,
)
from rlhf.recipe.simulation.workload import Setting, Trouble, Workload
from rlhf.rollout.router import Router
from rlhf.trainer.buffer import TicketBuffer
from rlhf.trainer.loop import Loop
from rlhf.types import Failed, Filtered, Group, PolicyVersion, Task, Updated

WARM_UP = 2
"""Updates beyond the staleness that are not counted: what engines and learner do is not spread out yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Means over the counted updates of a simulated run. `engines_busy`, `learner_busy` and `learner_waits` are shares
    of the time, `running` the sequences of the mean engine."""

    update_seconds: float
    samples_per_second: float
    tokens_per_second: float
    engines_busy: float
    running: float
    learner_busy: float
    learner_waits: float
    staleness_mean: float
    staleness_max: int
    engines_lost: int
    episodes_lost: int


class EmptyTasks:
    """Tasks of which only the ordinal matters."""

    def __getitem__(self, ordinal: int) -> Task:
        return TASK

    def settled(self, ordinal: int, outcome: Group | Filtered | Failed) -> None:
        pass

    def advance(self, trained: int) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateEnd:
    """The time at which an update ended, and the seconds so far in which engines worked, and those of all sequences."""

    time: float
    busy: float
    running: float


class UpdateEnds:
    """The `Boundary` of a simulated run: it takes the controller's seconds, and notes the state."""

    def __init__(self, engines: Sequence[SimulatedEngine], rest: float) -> None:
        self._engines, self._rest = engines, rest
        self.ends: list[UpdateEnd] = []

    async def __call__(self, version: PolicyVersion, updated: Updated | None) -> bool:
        await asyncio.sleep(self._rest)
        for engine in self._engines:
            engine.count()
        self.ends.append(
            UpdateEnd(
                time=asyncio.get_running_loop().time(),
                busy=sum(engine.busy_seconds for engine in self._engines),
                running=sum(engine.running_seconds for engine in self._engines),
            )
        )
        return False


class Breakdowns:
    """Fails engines at random, and brings each back after its restart."""

    def __init__(self, router: Router, restart: float, trouble: Trouble) -> None:
        self._router, self._restart, self._trouble = router, restart, trouble
        self.count = 0

    async def of(self, engine: SimulatedEngine) -> None:
        draw = random.Random(f"{self._trouble.seed} {engine.name}")
        while self._trouble.failures_per_hour:
            await asyncio.sleep(draw.expovariate(self._trouble.failures_per_hour / 3600))
            self._router.remove(engine)
            engine.fail()
            self.count += 1
            await asyncio.sleep(self._restart)
            self._router.add(engine)


def predict(workload: Workload, setting: Setting, trouble: Trouble, *, updates: int) -> Prediction:
    """Predict so many updates, after some that are not counted."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(_simulated(workload, setting, trouble, updates))


async def _simulated(workload: Workload, setting: Setting, trouble: Trouble, updates: int) -> Prediction:
    cores, sampled, durations = Cores(setting.cores), sampled_tokens(), workload.durations
    engines = [_engine(number, workload, setting, cores, sampled) for number in range(setting.engines)]
    router = Router(engines)
    router.fails_over = True
    rollout = SimulatedRollout(router, workload.groups, trouble)
    learner = SimulatedLearner(durations, setting.learner_threads, rollout, engines, cores, sampled)
    first = setting.max_staleness + WARM_UP
    total = first + updates + setting.max_staleness  # at its end a run plays nothing ahead
    buffer = TicketBuffer(
        groups_per_update=setting.groups_per_update, max_staleness=setting.max_staleness, updates=total,
        refill_groups=setting.refill_groups, failure_budget=1.0,
    )  # fmt: skip
    loop = Loop(
        tasks=EmptyTasks(), rollout=rollout, buffer=buffer, learner=learner, weights=learner,
        max_concurrent_groups=setting.concurrent_groups,
    )  # fmt: skip
    watched, breakdowns = UpdateEnds(engines, durations.rest), Breakdowns(router, durations.restart, trouble)
    failing = [asyncio.ensure_future(breakdowns.of(engine)) for engine in engines]
    await loop.run(total, watched)
    for task in failing:
        task.cancel()
    counted = learner.updates[first : first + updates]
    idle = durations.weight_sync + durations.rest
    found = _prediction(watched.ends[first : first + updates + 1], counted, len(engines), idle)
    return replace(found, engines_lost=breakdowns.count, episodes_lost=rollout.lost_episodes)


def _engine(number: int, workload: Workload, setting: Setting, cores: Cores, sampled: SampledBy) -> SimulatedEngine:
    return SimulatedEngine(
        f"engine-{number}", workload.durations.step, places=setting.places, cores=cores,
        threads=setting.engine_threads, sampled=sampled,
    )  # fmt: skip


def _prediction(ends: Sequence[UpdateEnd], updates: Sequence[SimulatedUpdate], engines: int, idle: float) -> Prediction:
    """`idle` are the seconds of an update in which the learner neither trains nor waits for groups."""
    seconds, train = ends[-1].time - ends[0].time, sum(update.seconds for update in updates)
    staleness = sum((update.staleness for update in updates), Counter[int]())
    return Prediction(
        update_seconds=seconds / len(updates),
        samples_per_second=sum(update.samples for update in updates) / seconds,
        tokens_per_second=sum(update.tokens for update in updates) / seconds,
        engines_busy=(ends[-1].busy - ends[0].busy) / (engines * seconds),
        running=(ends[-1].running - ends[0].running) / (engines * seconds),
        learner_busy=train / seconds,
        learner_waits=max(0.0, 1 - (train + idle * len(updates)) / seconds),
        staleness_mean=sum(age * tokens for age, tokens in staleness.items()) / max(staleness.total(), 1),
        staleness_max=max(staleness, default=0),
        engines_lost=0,
        episodes_lost=0,
    )
