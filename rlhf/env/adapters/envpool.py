"""EnvPool's environments: many sessions share one pool, which steps them in its threads and answers whoever is ready.

A pool is made once with one seed, and its environments continue its random streams: the seed of a reset has no effect,
and a run over a pool is not reproducible. `GymnasiumEnvironment` plays the same games, one per session, from the seed
of each reset.
"""

from __future__ import annotations

import asyncio
import functools
import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlhf.env.adapters.gymnasium import action_reader, not_understood, observation_writer
from rlhf.env.adapters.imports import imported
from rlhf.env.single_turn import first_messages
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.types import EnvironmentSpec, Message, Observation, Task

PoolResult = tuple[Any, float, bool, bool]
"""Observation, reward, terminated, truncated of one environment."""


class EnvPoolEnvironment:
    """One episode in a slot of the pool that this process has of `id`: `slots` environments, made by EnvPool with
    `options` and `seed`.

    `actions`, `bins` and `text` are those of `GymnasiumEnvironment`. Allow as many sessions as there are slots: a reset
    beyond them waits `seconds` for a free slot. A reply that is not an action is answered with an explanation, without
    a step. Raises `ConfigError`.
    """

    def __init__(
        self,
        id: str,
        *,
        slots: int = 64,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        bins: Sequence[Sequence[float]] | None = None,
        text: str | None = None,
        seconds: float = 60.0,
    ) -> None:
        self._pool = shared_pool(id, slots, seed, json.dumps(options or {}, sort_keys=True))
        self._actions = action_reader(self._pool.pool.action_space, actions)
        self._text = observation_writer(self._pool.pool.observation_space, bins, text)
        self._seconds = seconds
        self._slot: int | None = None
        self.spec = EnvironmentSpec(name=id, description=f"{id} of EnvPool; answer with {self._actions.said}")

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Take a slot and start its episode. Raises `EnvironmentFailed`: `refused` when no slot becomes free."""
        try:
            async with asyncio.timeout(self._seconds):
                self._slot = await self._pool.take()
        except TimeoutError:
            detail = f"no free slot within {self._seconds:g} s"
            raise EnvironmentFailed(self.spec.name, "refused", detail) from None
        slots = np.array([self._slot], dtype=np.int32)
        # EnvPool's own `reset` also receives, which might return another session's result.
        seen, *_ = await self._pool.exchange(self._slot, lambda: self._pool.pool._reset(slots))
        return Observation(messages=first_messages(task, self._text(seen)))

    async def step(self, action: Message) -> Observation:
        chosen = self._actions.action(action.content)
        if chosen is None:
            return not_understood(self._actions)
        if self._slot is None:
            raise RuntimeError("step before reset")
        actions, slots = np.array([chosen]), np.array([self._slot])
        result = await self._pool.exchange(self._slot, lambda: self._pool.pool.send(actions, slots))
        seen, reward, terminated, truncated = result
        return Observation(
            messages=(Message(role="user", content=self._text(seen)),),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
        )

    async def close(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            self._pool.free(slot)


class SharedPool:
    """One pool of EnvPool, a thread that receives its results, and the slots that are free. For one event loop at a
    time."""

    def __init__(self, pool: Any, slots: int) -> None:
        self.pool = pool
        self._free: asyncio.Queue[int] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[PoolResult]] = {}
        self._left: set[int] = set()
        self._due: queue.SimpleQueue[asyncio.AbstractEventLoop] = queue.SimpleQueue()
        for slot in range(slots):
            self._free.put_nowait(slot)
        threading.Thread(target=self._receive, name="receiver of EnvPool", daemon=True).start()

    async def take(self) -> int:
        """Return a free slot, as soon as there is one."""
        return await self._free.get()

    async def exchange(self, slot: int, send: Callable[[], None]) -> PoolResult:
        """Call `send` and wait for the slot's result."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[PoolResult] = loop.create_future()
        self._waiting[slot] = result
        send()
        self._due.put(loop)
        return await result

    def free(self, slot: int) -> None:
        """Free a slot; one with a result outstanding becomes free when the result arrives."""
        if slot in self._waiting:
            self._left.add(slot)
        else:
            self._free.put_nowait(slot)

    def _receive(self) -> None:
        """Receive exactly as often as was sent: a receive with nothing in flight would never return."""
        while True:
            loop = self._due.get()
            loop.call_soon_threadsafe(self._arrived, self.pool.recv())

    def _arrived(self, batch: tuple[Any, ...]) -> None:
        seen, reward, terminated, truncated, info = batch
        slot = int(info["env_id"][0])
        result = self._waiting.pop(slot)
        if slot in self._left:
            self._left.discard(slot)
            self._free.put_nowait(slot)
        elif not result.done():
            result.set_result((seen[0], float(reward[0]), bool(terminated[0]), bool(truncated[0])))


@functools.lru_cache(maxsize=8)
def shared_pool(id: str, slots: int, seed: int, options: str) -> SharedPool:
    """Return the pool of this process with these settings; it lasts as long as the process. It returns one result at a
    time. Raises `ConfigError`."""
    envpool = imported("envpool")
    if id not in envpool.list_all_envs():
        raise ConfigError(f"envpool has no environment {id}")
    made = envpool.make(id, env_type="gymnasium", num_envs=slots, batch_size=1, seed=seed, **json.loads(options))
    return SharedPool(made, slots)
