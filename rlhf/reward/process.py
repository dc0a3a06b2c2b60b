"""Scorers in processes that can be killed: one that hangs, dies or raises gives no score, never 0."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rlhf.chat.templates import as_chat
from rlhf.cluster.child import Child, ChildEnded
from rlhf.cluster.loop_thread import BackgroundLoop
from rlhf.errors import ConfigError, DataError, DeadlinePassed
from rlhf.reward.row_lines import request_lines
from rlhf.types import EpisodeStatus, Message, Scored, Trajectory, Unscored, finite_number
from rlhf.untrusted_text import InvalidJson

T = TypeVar("T")
START_TIMEOUT_SECONDS = 120.0
"""A scorer's module may import heavy libraries."""
LINE_BYTES = 2**20
"""A longer answer is refused: an answer is a number or a reason."""
TRIES = 3
"""Attempts for a response whose worker dies: something else may have killed it."""
FIELDS: dict[str, Callable[[Trajectory, Sequence[Trajectory]], Any]] = {
    "answer": lambda one, group: one.task.answer,
    "prompt": lambda one, group: [as_chat(message) for message in one.task.messages],
    "messages": lambda one, group: [as_chat(message) for message in one.conversation or _without_environment(one)],
    "completion_ids": lambda one, group: [
        token for segment in one.segments for token in segment.token_ids[segment.action_mask].tolist()
    ],
    "truncated": lambda one, group: one.status is EpisodeStatus.TRUNCATED,
    "turns": lambda one, group: one.turns or 1,
    "role": lambda one, group: one.role,
    "env_info": lambda one, group: list(one.env_info),
    "state": lambda one, group: one.env_info[-1] if one.env_info else {},
    "group": lambda one, group: [other.response for other in group if other.role == one.role],
    "reward_parts": lambda one, group: one.reward_parts,
}
"""What a function may ask to know of an episode of a group, as `conventions.Episode` describes it."""


class ScorerPool:
    """`workers` processes that run `function` (`module:name`) with keyword `arguments`. The deadline of a response
    starts when a worker has it. A worker that exceeds it is killed with all its child processes. If a worker dies, a
    fresh one scores its response again, `TRIES` times in all. `memory_bytes`, if not 0, limits the address space of
    each worker. Workers die with this process. Their output is appended to `log`, or goes to standard error. `score`
    may be called from any event loop; call `close` before the process ends."""

    def __init__(
        self,
        function: str,
        workers: int,
        timeout_seconds: float,
        log: Path | None = None,
        variables: Sequence[str] = (),
        *,
        arguments: Mapping[str, Any] | None = None,
        memory_bytes: int = 0,
    ) -> None:
        self._function, self._timeout_seconds, self._log, self._variables = function, timeout_seconds, log, variables
        settings = {"arguments": dict(arguments or {}), "memory_bytes": memory_bytes}
        self._settings = json.dumps(settings).encode() + b"\n"
        self._workers = workers
        self._slots: asyncio.Queue[Child | None] = asyncio.Queue()
        for _ in range(workers):
            self._slots.put_nowait(None)
        self._started: list[Child] = []
        self._called: dict[str, Any] = {}
        self._closed = False
        self._thread = BackgroundLoop(f"scorers of {function}")  # deadlines hold while the caller's loop is busy

    async def start(self) -> None:
        """Start every worker now, so that an import error of the function is reported early. Raises `ConfigError`."""
        await self._run(self._start())

    async def scores(self, played: Sequence[Trajectory], row: Mapping[str, Any]) -> list[Scored | Unscored]:
        """Return the scorer's number for each episode of a group, or `Unscored` of kind `timeout`, `died`, `raised` or
        `not a number`. Raises `ConfigError` when the function cannot be imported or called, `DataError` for a row that
        is not plain data."""
        wants = await self.wants()
        episodes = [{"response": one.response, **{name: FIELDS[name](one, played) for name in wants}} for one in played]
        batches = [episodes] if self._called["grouped"] else [[one] for one in episodes]
        try:
            requests = request_lines(batches, row)
        except TypeError as error:
            raise DataError(f"{self._function} cannot receive a row: {error}") from None
        found = await asyncio.gather(*(self._run(self._ask(one, len(batches[0]))) for one in requests))
        return [score for scores in found for score in scores]

    async def wants(self) -> Sequence[str]:
        """Return the fields of an episode that the function asks for. Raises `ConfigError`."""
        if not self._called:
            await self._run(self._learn())
        return list[str](self._called["wants"])

    async def close(self) -> None:
        """Kill the workers. Responses that are being scored return as `died`; waiting ones raise `RuntimeError`."""
        if not self._closed:
            await self._run(self._close())
            self._thread.stop()

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise RuntimeError("the scorer pool is closed")
        return await self._thread.run(work)

    async def _start(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await asyncio.gather(*(stack.enter_async_context(self._worker()) for _ in range(self._workers)))

    async def _learn(self) -> None:
        """Learn from a worker how the function is called."""
        async with self._worker():
            pass

    async def _ask(self, request: bytes, size: int) -> list[Scored | Unscored]:
        for _ in range(TRIES):
            scores = await self._ask_once(request, size)
            if self._closed or not any(isinstance(one, Unscored) and one.kind == "died" for one in scores):
                break
        return scores

    async def _ask_once(self, request: bytes, size: int) -> list[Scored | Unscored]:
        async with self._worker() as worker:
            try:
                return _outcomes(await worker.ask(request, self._timeout_seconds), size)
            except TimeoutError:
                lost = Unscored(kind="timeout", detail=f"{self._function} was killed after {self._timeout_seconds:g} s")
            except ChildEnded as ended:
                lost = Unscored(kind="died", detail=f"the process of {self._function} {ended}")
            except InvalidJson as error:
                await worker.kill()
                lost = Unscored(kind="died", detail=f"{self._function} sent no valid answer: {error}")
        return [lost] * size

    @contextlib.asynccontextmanager
    async def _worker(self) -> AsyncIterator[Child]:
        """Wait for a free slot, and start its worker if needed."""
        worker = await self._slots.get()
        try:
            if worker is None or not worker.alive:
                if worker is not None:
                    await worker.kill()  # it may be stopped only
                worker = await self._new_worker()
            yield worker
        finally:
            self._slots.put_nowait(worker)

    async def _new_worker(self) -> Child:
        if self._closed:
            raise RuntimeError("the scorer pool is closed")
        worker = await Child.start(
            "rlhf.reward.scorer_process",
            [self._function],
            line_bytes=LINE_BYTES,
            variables=self._variables,
            log=self._log,
        )
        self._started = [known for known in self._started if known.alive] + [worker]
        try:
            message = await worker.ask(self._settings, START_TIMEOUT_SECONDS)
        except TimeoutError:
            raise DeadlinePassed(f"the import of reward function {self._function}", START_TIMEOUT_SECONDS) from None
        except ChildEnded as ended:
            message = {"detail": f"its process {ended} during the import"}
        except InvalidJson as error:
            message = {"detail": f"it wrote to the result pipe while being imported: {error}"}
        if "convention" not in message:
            await worker.kill()
            raise ConfigError(f"reward.function {self._function!r} cannot be used: {message.get('detail')}")
        self._called = message
        return worker

    async def _close(self) -> None:
        self._closed = True
        await asyncio.gather(*(worker.kill() for worker in self._started))
        running = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*running, return_exceptions=True)


def _outcomes(message: dict[str, Any], size: int) -> list[Scored | Unscored]:
    if not isinstance(scores := message.get("scores"), list) or len(scores) != size:
        raise InvalidJson("an object without scores")
    return [_outcome(one) for one in scores]


def _outcome(message: dict[str, Any]) -> Scored | Unscored:
    match message:
        case {"value": value}:
            number = None if isinstance(value, bool) else finite_number(value)
            if number is None:
                large = ", which is infinite in float32" if isinstance(value, float) and math.isfinite(value) else ""
                return Unscored(kind="not a number", detail=f"it returned {value!r:.200}{large}")
            return Scored(value=number)
        case {"kind": str(kind), "detail": str(detail)}:
            return Unscored(kind=kind, detail=detail)
        case _:
            raise InvalidJson("an object without a value or a failure")


def _without_environment(episode: Trajectory) -> tuple[Message, ...]:
    return (*episode.task.messages, Message(role="assistant", content=episode.response))
