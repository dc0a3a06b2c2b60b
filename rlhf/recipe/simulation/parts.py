"""Stand-ins of engines, episodes, learner and weight sync, which only wait."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from rlhf.errors import EngineBroken, GenerateFailed
from rlhf.protocols import RolloutEngine
from rlhf.recipe.simulation.clock import Cores, Flow
from rlhf.recipe.simulation.workload import Durations, EpisodeWork, GroupWork, StepSeconds, Trouble
from rlhf.rollout.engine import Draft
from rlhf.rollout.router import Router
from rlhf.types import (
    Completion,
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
)

SampledBy = dict[str, Counter[PolicyVersion]]
"""The tokens of each session by the version that sampled them."""
TASK = Task(id="", messages=())


class SimulatedEngine:
    """A `DraftingEngine` that waits as long as a step takes for each token; all its sequences advance together."""

    def __init__(
        self, name: str, step: StepSeconds, *, places: int, cores: Cores, threads: float, sampled: SampledBy
    ) -> None:
        self.name = name
        self._step, self._cores, self._threads, self._sampled = step, cores, threads, sampled
        self.places, self.version, self._flow = places, 0, Flow()
        self._loop = asyncio.get_running_loop()
        self._going_on: asyncio.TimerHandle | None = None
        self._sampling, self._interrupted = True, set[str]()
        self._commits: list[tuple[float, PolicyVersion]] = [(0.0, 0)]
        self._inside, self._running, self._context = 0, 0, 0.0
        self._counted_at = self._loop.time()
        self.busy_seconds, self.running_seconds = 0.0, 0.0
        cores.tell(self._set_pace)

    async def generate(
        self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str, draft: Draft | None = None
    ) -> Completion:
        """Wait for `sampling.max_tokens` tokens, less those in the draft. What comes later is read later."""
        before = len(draft.sampled.token_ids) if draft and session in self._interrupted else 0
        read = len(prompt.token_ids) + before
        self._take(1)
        try:
            await self._flow.piece(self._flow.add_heavy(read / self._step.chunk))
            await self._sample(session, read, sampling.max_tokens - before)
        except EngineBroken:
            self._interrupted.add(session)
            if draft:
                draft.add(_tokens(self._sampled[session].total() - before))
            raise
        finally:
            self._take(-1)
        return REPLY

    async def _sample(self, session: str, read: int, tokens: int) -> None:
        began = self._flow.done
        self._run(1, read - began)
        try:
            await self._flow.piece(tokens)
        finally:
            self._run(-1, began - read)
            self._note(session, began, self._flow.done)

    def pause(self) -> None:
        self.count()
        if self._going_on:
            self._going_on.cancel()
        self._sampling = False
        self._set_pace()

    def resume(self, version: PolicyVersion) -> None:
        """Go on with new weights: all that runs is computed again, and goes on at half of that time on average."""
        done, self.version = self._flow.done, version
        self._commits.append((done, version))
        again = (self._context + self._running * done) * (self._step.prompt_token + self._step.fixed / self._step.chunk)
        self._going_on = self._loop.call_later(again / 2, self._go_on)

    def _go_on(self) -> None:
        self.count()
        self._sampling = True
        self._set_pace()

    def fail(self) -> None:
        """Lose all that runs."""
        self._flow.fail(EngineBroken(self.name, "it failed"))

    def _take(self, more: int) -> None:
        """Take sequences in, or let them go."""
        before, after = self._inside, self._inside + more
        if before and after:
            self._inside = after
            return
        self.count()
        self._inside = after
        self._cores.take(more * self._threads)
        self._set_pace()

    def _run(self, more: int, context: float) -> None:
        """Sample from more sequences. `_context` and `_running * done` together are the tokens of all of them."""
        self.count()
        self._running += more
        self._context += context
        self._set_pace()

    def _set_pace(self) -> None:
        step = self._step.of(self._running)
        reading = step + self._step.prompt_token * self._step.chunk
        self._flow.run(self._cores.share if self._sampling and self._inside else 0.0, step, reading)

    def count(self) -> None:
        """Count the seconds until now."""
        now = self._loop.time()
        seconds, self._counted_at = now - self._counted_at, now
        if self._sampling and self._inside:
            self.busy_seconds += seconds
            self.running_seconds += self._running * seconds

    def _note(self, session: str, began: float, ended: float) -> None:
        """Note which versions sampled the tokens between two states of the flow."""
        ends = [*(done for done, _ in self._commits[1:]), float("inf")]
        for (start, version), stop in zip(reversed(self._commits), reversed(ends), strict=True):
            self._sampled[session][version] += max(0, round(min(stop, ended)) - round(max(start, began)))
            if start <= began:
                break


@cache
def _tokens(count: int) -> SampledTokens:
    zeros = np.zeros(count, np.int32)
    return SampledTokens(zeros, zeros.astype(np.float32), zeros)


REPLY = Completion(
    token_ids=_tokens(0).token_ids,
    logprobs=_tokens(0).logprobs,
    versions=_tokens(0).versions,
    finish_reason=FinishReason.STOP,
)
"""What no part of a simulated run looks into."""


class SimulatedRollout:
    """A `Rollout` that plays the groups of a workload."""

    def __init__(self, router: Router, groups: Sequence[GroupWork], trouble: Trouble) -> None:
        self._router, self._groups, self._trouble = router, groups, trouble
        self._random = random.Random(trouble.seed)
        self.lost_episodes = 0

    def work(self, ordinal: int) -> GroupWork:
        return self._groups[ordinal % len(self._groups)]

    async def __call__(self, task: Task, ticket: Ticket) -> Group | Filtered:
        work = self.work(ticket.ordinal)
        await asyncio.gather(
            *(self._episode(f"{ticket.ordinal}-{place}", episode) for place, episode in enumerate(work.episodes))
        )
        await asyncio.sleep(work.scoring_seconds)
        group = Group(ticket=ticket, task=task, samples=())
        return Filtered(group=group, reason="filtered") if work.filtered else group

    async def _episode(self, session: str, work: EpisodeWork) -> None:
        now = asyncio.get_running_loop().time
        began = now()
        try:
            await play_episode(self._router, session, work)
        except GenerateFailed:
            self.lost_episodes += 1
        if self._random.random() < self._trouble.straggler_share:
            await asyncio.sleep((self._trouble.straggler_factor - 1) * (now() - began))


async def play_episode(engine: RolloutEngine, session: str, work: EpisodeWork) -> None:
    """Play an episode: its turns, and the environment after each."""
    bounds = [round(work.tokens * turn / work.turns) for turn in range(work.turns + 1)]
    for start, stop in pairwise(bounds):
        prompt = Prompt(token_ids=_tokens(work.prompt_tokens + start).token_ids)
        await engine.generate(prompt, sampling=Sampling(max_tokens=stop - start), seed=0, session=session)
        if work.environment_seconds:
            await asyncio.sleep(work.environment_seconds / work.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedUpdate:
    """What was trained in how many seconds; `staleness` has the tokens by their age in updates."""

    seconds: float
    samples: int
    tokens: int
    staleness: Counter[int]


class SimulatedLearner:
    """A `Learner` and a `WeightSync`."""

    def __init__(
        self,
        durations: Durations,
        threads: float,
        rollout: SimulatedRollout,
        engines: Sequence[SimulatedEngine],
        cores: Cores,
        sampled: SampledBy,
    ) -> None:
        self._durations, self._threads, self._rollout = durations, threads, rollout
        self._engines, self._cores, self._sampled = engines, cores, sampled
        self._flow, self._version = Flow(), -1
        self.updates: list[SimulatedUpdate] = []
        cores.tell(lambda: self._flow.run(cores.share))

    async def update(self, groups: Sequence[Group]) -> Updated:
        now = asyncio.get_running_loop().time
        began, works = now(), [(group.ticket.ordinal, self._rollout.work(group.ticket.ordinal)) for group in groups]
        await self._compute(self._durations.train_token * sum(work.trained_tokens for _, work in works))
        staleness: Counter[int] = Counter()
        for session in (f"{ordinal}-{place}" for ordinal, work in works for place in range(len(work.episodes))):
            for version, tokens in self._sampled.pop(session, Counter[int]()).items():
                staleness[self._version - version] += tokens
        samples = sum(len(work.episodes) for _, work in works)
        self.updates.append(
            SimulatedUpdate(seconds=now() - began, samples=samples, tokens=staleness.total(), staleness=staleness)
        )
        return Updated(metrics={}, samples=())

    async def publish(self) -> PolicyVersion:
        self._version += 1
        for engine in self._engines:
            engine.pause()
        await asyncio.sleep(self._durations.weight_sync)
        for engine in self._engines:
            engine.resume(self._version)
        return self._version

    async def _compute(self, seconds: float) -> None:
        self._cores.take(self._threads)
        self._flow.run(self._cores.share)
        await self._flow.piece(seconds)
        self._cores.take(-self._threads)


def sampled_tokens() -> SampledBy:
    return defaultdict(Counter)
