"""Reward by a trained model: it scores a trajectory's tokens, in workers that are called in batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf.cluster.restarts import STARTS, Restarts
from rlhf.cluster.worker import Worker, WorkerHandle
from rlhf.errors import DeadlinePassed, Raised, WorkerDied, WorkerFailed, catch_awaiting
from rlhf.reward.model_worker import RewardModelFacts, RewardModelSettings, RewardModelWorker
from rlhf.types import Prompt, Scored, Task, Trajectory, Unscored, is_finite

NAME = "model"


class ModelReward:
    """A `RewardFunction` with reward models in workers. The score is that of the final context of the episode, read at
    its last token. A sequence that the model cannot read is unscored. With `restarts`, workers that die start again;
    otherwise, or if that fails, their death ends the run with `WorkerDied`."""

    def __init__(
        self,
        workers: Sequence[Worker],
        settings: RewardModelSettings,
        *,
        timeout_seconds: float,
        start_timeout_seconds: float,
        restarts: Restarts | None = None,
    ) -> None:
        seconds = timeout_seconds, start_timeout_seconds
        self._seats = [ScoringSeat(worker, settings, *seconds, restarts) for worker in workers]
        self._batcher = Batcher(self._seats, settings.tokens_per_batch)
        self._facts = RewardModelFacts(context_tokens=0, vocab_size=0)

    async def start(self) -> None:
        """Load the model in every worker. Raises `ModelError`."""
        facts = await asyncio.gather(*(seat.begin(seat.worker) for seat in self._seats))
        self._facts = facts[0]

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        return await asyncio.gather(*(self._score(trajectory) for trajectory in trajectories))

    async def close(self) -> None:
        """Cancel pending requests; the workers end with their cluster."""
        await self._batcher.close()

    async def _score(self, trajectory: Trajectory) -> Scored | Unscored:
        if trajectory.action_tokens == 0:
            return Unscored(kind="empty", detail="the reply is empty")
        last, most = trajectory.segments[-1], self._facts.context_tokens
        tokens = last.token_ids
        if len(tokens) > most:
            detail = f"{len(tokens)} tokens exceed the reward model's context of {most}"
            return Unscored(kind="too long", detail=detail)
        if int(tokens.max()) >= self._facts.vocab_size:
            detail = f"token {int(tokens.max())} is outside the vocabulary of {self._facts.vocab_size}"
            return Unscored(kind="unknown token", detail=detail)
        return outcome(await self._batcher.score(Prompt(token_ids=tokens, images=last.images)))


def outcome(score: float | Unscored) -> Scored | Unscored:
    """Return a finite score; NaN and infinity become `Unscored`."""
    if isinstance(score, Unscored):
        return score
    if not is_finite(score):
        return Unscored(kind="not finite", detail=f"the reward model returned {score}")
    return Scored(value=score, parts={NAME: score})


@dataclass(slots=True, eq=False)
class ScoringSeat:
    """A worker with the model, and its replacements."""

    worker: Worker
    settings: RewardModelSettings
    timeout_seconds: float
    start_timeout_seconds: float
    restarts: Restarts | None

    async def begin(self, worker: Worker) -> RewardModelFacts:
        handle, seconds = WorkerHandle[RewardModelWorker](worker), self.start_timeout_seconds
        return await handle.call(lambda model: model.start(self.settings), timeout_seconds=seconds)

    async def score(self, sequences: Sequence[Prompt], starts: int = STARTS) -> list[float]:
        """Return the scores, from a new worker if one dies. Raises `WorkerDied` when `starts` more have died, since the
        sequences may be the cause, and what a call raises."""
        handle, seconds = WorkerHandle[RewardModelWorker](self.worker), self.timeout_seconds
        try:
            return await handle.call(lambda model: model.score(sequences), timeout_seconds=seconds)
        except WorkerDied as death:
            if self.restarts is None or not starts:
                raise
            self.worker, _ = await self.restarts.after(death, self.worker, self.begin)
        return await self.score(sequences, starts - 1)


@dataclass(frozen=True, slots=True, eq=False)
class PendingSequence:
    prompt: Prompt
    answer: asyncio.Future[float | Unscored]


class Batcher:
    """Batches the requests of all groups in their order, up to `tokens` per call, while the workers are busy. The
    deadline applies to one call; the wait for a free worker ends because every earlier call and start ends."""

    def __init__(self, seats: Sequence[ScoringSeat], tokens: int) -> None:
        self._tokens, self._free = tokens, list(seats)
        self._waiting: deque[PendingSequence] = deque()
        self._serving: set[asyncio.Task[None]] = set()

    async def score(self, prompt: Prompt) -> float | Unscored:
        """Return the score, or `Unscored` of kind `timeout` or `raised`. Raises `WorkerDied`."""
        request = PendingSequence(prompt, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._free:
            task = asyncio.create_task(self._serve(self._free.pop()))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        return await request.answer

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, seat: ScoringSeat) -> None:
        """Run one worker until no request is pending."""
        await asyncio.sleep(0)  # the rest of a group arrives in the same tick
        try:
            while batch := self._take():
                await self._settle(seat, batch)
        finally:
            self._free.append(seat)

    async def _settle(self, seat: ScoringSeat, batch: Sequence[PendingSequence]) -> None:
        """Score one batch and deliver the results. Runs as its own task, so every waiter gets a result or an error."""
        try:
            answers = await catch_awaiting(self._ask(seat, batch))
            for index, request in enumerate(batch):
                if request.answer.done():
                    continue
                if isinstance(answers, Raised):
                    request.answer.set_exception(answers.error)
                else:
                    request.answer.set_result(answers[index])
        finally:
            for request in batch:
                request.answer.cancel()

    async def _ask(self, seat: ScoringSeat, batch: Sequence[PendingSequence]) -> Sequence[float | Unscored]:
        try:
            scores = await seat.score([request.prompt for request in batch])
        except DeadlinePassed as error:
            return [Unscored(kind="timeout", detail=str(error))] * len(batch)
        except WorkerFailed as error:
            return [Unscored(kind="raised", detail=str(error))] * len(batch)
        return [score for score, _ in zip(scores, batch, strict=True)]

    def _take(self) -> list[PendingSequence]:
        """Return the oldest requests, up to the token budget; at least one if any is pending."""
        batch: list[PendingSequence] = []
        room = self._tokens
        while self._waiting and (not batch or len(self._waiting[0].prompt.token_ids) <= room):
            request = self._waiting.popleft()
            if not request.answer.cancelled():
                batch.append(request)
                room -= len(request.prompt.token_ids)
        return batch
