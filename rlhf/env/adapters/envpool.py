"""EnvPool's environments: many sessions over one pool, stepped by its threads; results return in the order of
completion.

A pool is made once with one seed, and its environments continue its random streams: the seed of a reset has no effect,
and a run over a pool is not reproducible. `GymnasiumEnvironment` plays the same games, one per session, from the seed
of each reset.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlhf.env.adapters.gymnasium import action_reader, observation_writer
from rlhf.env.adapters.imports import imported
from rlhf.env.asking import asked
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.types import EnvironmentSpec, Message, Observation, Task

Arrived = tuple[Any, float, bool, bool]
"""Observation, reward, terminated, truncated of one environment."""


class EnvPoolEnvironments:
    """`Environments` over a pool: `slots` environments of `id`, made by EnvPool with `options` and `seed`.

    `actions`, `bins` and `text` are those of `GymnasiumEnvironment`. `open` waits `seconds` for a free slot, and a
    session as long for its environment; after that they raise `EnvironmentFailed`. Use it from one event loop; `stop`
    ends it.
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
        self.pool = pool_of(id, slots, seed, options or {})
        self.actions = action_reader(self.pool.action_space, actions)
        self.text = observation_writer(self.pool.observation_space, bins, text)
        self.spec = EnvironmentSpec(name=id, description=f"{id} of EnvPool; answer with {self.actions.said}")
        self.seconds = seconds
        self._free: asyncio.Queue[int] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[Arrived]] = {}
        self._left: set[int] = set()
        self._due: queue.SimpleQueue[asyncio.AbstractEventLoop | None] = queue.SimpleQueue()
        for slot in range(slots):
            self._free.put_nowait(slot)
        self._receiver = threading.Thread(target=self._receive, name=f"receiver of {id}", daemon=True)
        self._receiver.start()

    async def open(self, session: str) -> EnvPoolSession:
        """A session in a free slot. Raises `EnvironmentFailed` of kind `refused` when none becomes free in time."""
        try:
            async with asyncio.timeout(self.seconds):
                return EnvPoolSession(self, await self._free.get())
        except TimeoutError:
            detail = f"no free slot within {self.seconds:g} s"
            raise EnvironmentFailed(self.spec.name, "refused", detail) from None

    async def exchange(self, slot: int, send: Callable[[], None]) -> Arrived:
        """Call `send` and wait for the slot's result. Raises `EnvironmentFailed` of kind `timeout`."""
        loop = asyncio.get_running_loop()
        back: asyncio.Future[Arrived] = loop.create_future()
        self._waiting[slot] = back
        send()
        self._due.put(loop)
        try:
            async with asyncio.timeout(self.seconds):
                return await back
        except TimeoutError:
            detail = f"slot {slot} did not answer within {self.seconds:g} s"
            raise EnvironmentFailed(self.spec.name, "timeout", detail) from None

    def free(self, slot: int) -> None:
        """Free a slot; one with a result outstanding becomes free when the result arrives."""
        if slot in self._waiting:
            self._left.add(slot)
        else:
            self._free.put_nowait(slot)

    def stop(self) -> None:
        """End the pool; its sessions cannot be used after this."""
        self._due.put(None)
        self._receiver.join(self.seconds)
        self.pool.close()

    def _receive(self) -> None:
        """Receive exactly as often as was sent: a receive with nothing in flight would never return."""
        while (loop := self._due.get()) is not None:
            loop.call_soon_threadsafe(self._arrived, self.pool.recv())

    def _arrived(self, batch: tuple[Any, ...]) -> None:
        seen, reward, terminated, truncated, info = batch
        slot = int(info["env_id"][0])
        back = self._waiting.pop(slot)
        if slot in self._left:
            self._left.discard(slot)
            self._free.put_nowait(slot)
        elif not back.done():
            back.set_result((seen[0], float(reward[0]), bool(terminated[0]), bool(truncated[0])))


class EnvPoolSession:
    """One episode in a slot of the pool. A reply that is not an action is answered with an explanation, without
    a step."""

    def __init__(self, home: EnvPoolEnvironments, slot: int) -> None:
        self._home, self._slot, self._open = home, slot, True

    async def reset(self, task: Task, *, seed: int) -> Observation:
        slots = np.array([self._slot], dtype=np.int32)
        # EnvPool's own `reset` also receives, which might return another session's result.
        seen, *_ = await self._home.exchange(self._slot, lambda: self._home.pool._reset(slots))
        return Observation(messages=asked(task, self._home.text(seen)))

    async def step(self, action: Message) -> Observation:
        chosen = self._home.actions.action(action.content)
        if chosen is None:
            said = f"Not understood. Answer with {self._home.actions.said}"
            return Observation(messages=(Message(role="user", content=said),), info={"misunderstood": True})
        actions, slots = np.array([chosen]), np.array([self._slot])
        answer = await self._home.exchange(self._slot, lambda: self._home.pool.send(actions, slots))
        seen, reward, terminated, truncated = answer
        return Observation(
            messages=(Message(role="user", content=self._home.text(seen)),),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
        )

    async def close(self) -> None:
        if self._open:
            self._open = False
            self._home.free(self._slot)


def pool_of(id: str, slots: int, seed: int, options: Mapping[str, Any]) -> Any:
    """A pool that returns one result at a time. Raises `ConfigError`."""
    envpool = imported("envpool")
    if id not in envpool.list_all_envs():
        raise ConfigError(f"envpool has no environment {id}")
    return envpool.make(id, env_type="gymnasium", num_envs=slots, batch_size=1, seed=seed, **options)
