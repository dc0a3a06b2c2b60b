"""The training loop on a simulated clock, with stand-ins of engines, episodes and learner that only wait."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import inf

import numpy as np

from rlhf.engines.engine import Draft
from rlhf.engines.router import Router
from rlhf.errors import EngineBroken, GenerateFailed
from rlhf.protocols import RolloutEngine
from rlhf.recipe.schema import Recipe
from rlhf.recipe.simulation.clock import Cores, Flow, SimulatedLoop
from rlhf.recipe.workers import engine_device, engine_roles
from rlhf.trainer.buffer import TicketBuffer
from rlhf.trainer.loop import Loop
from rlhf.types import (
    Completion,
    Failed,
    Filtered,
    FinishReason,
    Group,
    PolicyVersion,
    Prompt,
    SampledTokens,
    Sampling,
    Task,
    Ticket,
    Updated,
)  # fmt: skip

WARM_UP = 2
"""Updates beyond the staleness that are not counted: what engines and learner do is not spread out yet."""
TASK = Task(id="", messages=())


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeWork:
    """An episode: the tokens of its prompt and those that the policy samples, in `turns` equal parts with the
    environment's seconds between them. A recorded one took so many `seconds` with its `engine`, and waits for it."""

    prompt_tokens: int
    tokens: int
    turns: int = 1
    environment_seconds: float = 0.0
    engine: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWork:
    """A group, and the seconds that its scores take when all episodes have ended. A `filtered` one is not trained. A
    recorded one has the time of its start, and the update that trained it."""

    episodes: tuple[EpisodeWork, ...]
    scoring_seconds: float = 0.0
    filtered: bool = False
    start: float = 0.0
    update: int | None = None

    @property
    def trained_tokens(self) -> int:
        """The tokens that the learner computes: a prompt that all episodes share once."""
        return max(one.prompt_tokens for one in self.episodes) + sum(one.tokens for one in self.episodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """The seconds of an engine's `step`, of each `sequence` that runs in it, of a prompt's token; of a trained token on
    all ranks; of a weight sync; of the controller between updates (`rest`); and until a lost engine is back."""

    step: float
    sequence: float
    prompt_token: float
    train_token: float
    weight_sync: float
    rest: float
    restart: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A share of episodes takes `straggler_factor` times as long, outside of the engines; engines fail so many times an
    hour each."""

    straggler_share: float = 0.0
    straggler_factor: float = 1.0
    failures_per_hour: float = 0.0


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


@dataclass(slots=True)
class Sampled:
    """The tokens of a session, the sum of the versions that sampled them, and the oldest of these."""

    tokens: float = 0.0
    versions: float = 0.0
    oldest: float = inf


@dataclass(slots=True)
class Totals:
    """Sums until `time`: of what was trained (`ages`: tokens times staleness), and of seconds: of training, of engines
    that worked, and of all their sequences."""

    samples: int = 0
    tokens: float = 0.0
    ages: float = 0.0
    train: float = 0.0
    time: float = 0.0
    busy: float = 0.0
    running: float = 0.0


class SimulatedEngine:
    """A `DraftingEngine` that waits as long as a step takes for each token; all its sequences advance together."""

    def __init__(
        self, name: str, durations: Durations, places: int, flow: Flow, sampled: Mapping[str, Sampled]
    ) -> None:
        self.name, self.places, self.flow = name, places, flow
        self._durations, self._sampled = durations, sampled
        self._sampling, self.version = True, 0
        self._running, self._context = 0, 0.0
        self._at, self._done, self._versions = 0.0, 0.0, 0.0
        self.busy_seconds, self.running_seconds = 0.0, 0.0

    async def generate(
        self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str, draft: Draft | None = None
    ) -> Completion:
        """Wait until the prompt is read and `sampling.max_tokens` tokens are sampled, less those in the draft."""
        before = len(draft.sampled.token_ids) if draft else 0
        read, sampled = len(prompt.token_ids) + before, self._sampled[session]
        self.flow.owe(read * self._durations.prompt_token)
        self.count(1)
        began, versions = self._done, self._versions
        self._context += read - began
        sampled.oldest = min(sampled.oldest, self.version)
        try:
            await self.flow.piece(sampling.max_tokens - before)
        except EngineBroken:
            if draft:
                draft.add(_tokens(int(self.flow.advance() - began)))
            raise
        finally:
            self.count(-1)
            self._context -= read - began
            sampled.tokens += self._done - began
            sampled.versions += self._versions - versions
        return REPLY

    def pause(self) -> None:
        self.count()
        self._sampling = False
        self.count()

    def resume(self, version: PolicyVersion) -> None:
        """Go on with new weights: all that runs is computed again, and goes on at half of that time on average."""
        self.flow.owe((self._context + self._running * self._done) * self._durations.prompt_token / 2)
        self.count()
        self._sampling, self.version = True, version
        self.count()

    def count(self, more: int = 0) -> None:
        """Count seconds, tokens and versions until now, and go on with more sequences."""
        now, done = asyncio.get_running_loop().time(), self.flow.advance()
        if self._sampling and self._running:
            self.busy_seconds += now - self._at
            self.running_seconds += self._running * (now - self._at)
        self._versions += self.version * (done - self._done)
        self._at, self._done, self._running = now, done, self._running + more
        seconds = self._durations.step + self._durations.sequence * max(self._running, 1)
        self.flow.run(self._sampling and self._running > 0, seconds)


@cache
def _tokens(count: int) -> SampledTokens:
    zeros = np.zeros(count, np.int32)
    return SampledTokens(zeros, zeros.astype(np.float32), zeros)


REPLY = Completion(**_tokens(0)._asdict(), finish_reason=FinishReason.STOP)
"""What no part of a simulated run looks into."""


async def play_episode(engine: RolloutEngine, session: str, work: EpisodeWork) -> None:
    """Play an episode: its turns, and the environment after each."""
    bounds = [round(work.tokens * turn / work.turns) for turn in range(work.turns + 1)]
    for start, stop in pairwise(bounds):
        prompt = Prompt(token_ids=_tokens(work.prompt_tokens + start).token_ids)
        await engine.generate(prompt, sampling=Sampling(max_tokens=stop - start), seed=0, session=session)
        if work.environment_seconds:
            await asyncio.sleep(work.environment_seconds / work.turns)


class SimulatedRun:
    """The parts of a run around its loop, buffer and router: `Tasks`, `Learner`, `WeightSync`, `Rollout`, `Boundary`.
    The groups are played again and again in order."""

    def __init__(
        self,
        recipe: Recipe,
        groups: Sequence[GroupWork],
        durations: Durations,
        trouble: Trouble,
        places: int,
        cores: float,
    ) -> None:
        self._recipe, self._groups, self._durations, self._trouble = recipe, groups, durations, trouble
        shared, threads = Cores(cores if engine_device(recipe) == "cpu" else inf), engine_roles(recipe)[0].threads
        self._sampled: dict[str, Sampled] = defaultdict(Sampled)
        self._engines = [
            SimulatedEngine(f"engine-{number}", durations, places, Flow(shared, threads), self._sampled)
            for number in range(len(recipe.rollout.tensor_parallel_sizes))
        ]
        self._router = Router(self._engines)
        self._router.fails_over = True
        ranks = recipe.trainer.deepspeed
        self._learner, self._version = Flow(shared, ranks.ranks * max(1, int(ranks.cpus_per_rank))), -1
        self._random, self._oldest = random.Random(0), 0.0
        self._engines_lost, self._episodes_lost = 0, 0
        self._totals, self._ends = Totals(), list[Totals]()

    async def run(self, updates: int) -> Prediction:
        """Predict so many updates, after some that are not counted."""
        trainer = self._recipe.trainer
        first = trainer.max_staleness + WARM_UP
        total = first + updates + trainer.max_staleness  # at its end a run plays nothing ahead
        buffer = TicketBuffer(
            groups_per_update=trainer.groups_per_update, max_staleness=trainer.max_staleness, updates=total,
            refill_groups=trainer.refill_groups, failure_budget=1.0,
        )  # fmt: skip
        loop = Loop(
            tasks=self, rollout=self.play, buffer=buffer, learner=self, weights=self,
            max_concurrent_groups=self._recipe.rollout.max_concurrent_groups or trainer.tickets,
        )  # fmt: skip
        failing = [asyncio.ensure_future(self._fail(engine)) for engine in self._engines]
        await loop.run(total, self.end_update)
        for task in failing:
            task.cancel()
        before, after, engines = self._ends[first], self._ends[first + updates], len(self._engines)
        seconds, train, tokens = after.time - before.time, after.train - before.train, after.tokens - before.tokens
        idle = updates * (self._durations.weight_sync + self._durations.rest)
        return Prediction(
            update_seconds=seconds / updates,
            samples_per_second=(after.samples - before.samples) / seconds,
            tokens_per_second=tokens / seconds,
            engines_busy=(after.busy - before.busy) / (engines * seconds),
            running=(after.running - before.running) / (engines * seconds),
            learner_busy=train / seconds,
            learner_waits=max(0.0, 1 - (train + idle) / seconds),
            staleness_mean=(after.ages - before.ages) / max(tokens, 1),
            staleness_max=int(self._oldest),
            engines_lost=self._engines_lost,
            episodes_lost=self._episodes_lost,
        )

    def __getitem__(self, ordinal: int) -> Task:
        return TASK

    def settled(self, ordinal: int, outcome: Group | Filtered | Failed) -> None: ...

    def advance(self, trained: int) -> None: ...

    async def play(self, task: Task, ticket: Ticket) -> Group | Filtered:
        work = self._groups[ticket.ordinal % len(self._groups)]
        await asyncio.gather(*(self._episode(f"{ticket.ordinal}-{n}", one) for n, one in enumerate(work.episodes)))
        await asyncio.sleep(work.scoring_seconds)
        group = Group(ticket=ticket, task=task, samples=())
        return Filtered(group=group, reason="filtered") if work.filtered else group

    async def _episode(self, session: str, work: EpisodeWork) -> None:
        now = asyncio.get_running_loop().time
        began = now()
        try:
            await play_episode(self._router, session, work)
        except GenerateFailed:
            self._episodes_lost += 1
        if self._random.random() < self._trouble.straggler_share:
            await asyncio.sleep((self._trouble.straggler_factor - 1) * (now() - began))

    async def update(self, groups: Sequence[Group]) -> Updated:
        began, totals = asyncio.get_running_loop().time(), self._totals
        works = {group.ticket.ordinal: self._groups[group.ticket.ordinal % len(self._groups)] for group in groups}
        self._learner.run(True)
        await self._learner.piece(self._durations.train_token * sum(one.trained_tokens for one in works.values()))
        self._learner.run(False)
        totals.train += asyncio.get_running_loop().time() - began
        for name in (f"{ordinal}-{n}" for ordinal, work in works.items() for n in range(len(work.episodes))):
            sampled = self._sampled.pop(name, Sampled())
            totals.samples += 1
            totals.tokens += sampled.tokens
            totals.ages += self._version * sampled.tokens - sampled.versions
            self._oldest = max(self._oldest, self._version - sampled.oldest)
        return Updated(metrics={}, samples=())

    async def publish(self) -> PolicyVersion:
        self._version += 1
        for engine in self._engines:
            engine.pause()
        await asyncio.sleep(self._durations.weight_sync)
        for engine in self._engines:
            engine.resume(self._version)
        return self._version

    async def end_update(self, version: PolicyVersion, updated: Updated | None) -> bool:
        await asyncio.sleep(self._durations.rest)
        for engine in self._engines:
            engine.count()
        busy, running = (
            sum(one.busy_seconds for one in self._engines),
            sum(one.running_seconds for one in self._engines),
        )
        time = asyncio.get_running_loop().time()
        self._ends.append(replace(self._totals, time=time, busy=busy, running=running))
        return False

    async def _fail(self, engine: SimulatedEngine) -> None:
        """Fail the engine at random, and bring it back after its restart."""
        draw = random.Random(f"0 {engine.name}")
        while self._trouble.failures_per_hour:
            await asyncio.sleep(draw.expovariate(self._trouble.failures_per_hour / 3600))
            self._router.remove(engine)
            engine.flow.fail(EngineBroken(engine.name, "it failed"))
            self._engines_lost += 1
            await asyncio.sleep(self._durations.restart)
            self._router.add(engine)


def predict(
    recipe: Recipe,
    groups: Sequence[GroupWork],
    durations: Durations,
    trouble: Trouble,
    *,
    places: int,
    cores: float,
    updates: int,
) -> Prediction:
    """Predict so many updates of a recipe whose engines run `places` sequences. On CPUs workers share the `cores`."""

    async def simulated() -> Prediction:
        return await SimulatedRun(recipe, groups, durations, trouble, places, cores).run(updates)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(simulated())
