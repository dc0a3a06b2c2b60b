"""The environment of the benchmark, as we serve it, with plain and with `async` methods: it says what was said."""

from __future__ import annotations

from rlhf.types import EnvironmentSpec, Message, Observation, Task


class Echo:
    """Never ends. A reward is the length of what was said."""

    spec = EnvironmentSpec(name="echo", description="Says what was said.")

    def reset(self, task: Task, *, seed: int) -> Observation:
        return Observation(messages=(Message(role="user", content="hello"),))

    def step(self, action: Message) -> Observation:
        said = Message(role="user", content=action.content)
        return Observation(messages=(said,), reward=float(len(action.content)))

    def close(self) -> None: ...


class AsyncEcho:
    """The same with `async` methods, which run on the server's event loop."""

    spec = Echo.spec

    def __init__(self) -> None:
        self._echo = Echo()

    async def reset(self, task: Task, *, seed: int) -> Observation:
        return self._echo.reset(task, seed=seed)

    async def step(self, action: Message) -> Observation:
        return self._echo.step(action)

    async def close(self) -> None: ...
