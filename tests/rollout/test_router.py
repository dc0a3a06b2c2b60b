"""The router, over engines that answer when they are told to."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rlhf.errors import WorkerDied
from rlhf.rollout.router import Router
from rlhf.types import Completion, FinishReason, Prompt, Sampling

PROMPT = Prompt(token_ids=np.array([1, 2], dtype=np.int32))


class GatedEngine:
    """Answers every request once its gate is open; raises `error` when it has one."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name, self.error = name, error
        self.gate = asyncio.Event()
        self.sessions: list[str] = []

    async def generate(self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str) -> Completion:
        self.sessions.append(session)
        await self.gate.wait()
        if self.error:
            raise self.error
        return Completion(
            token_ids=prompt.token_ids,
            logprobs=np.zeros(2, np.float32),
            versions=np.zeros(2, np.int32),
            finish_reason=FinishReason.STOP,
            engine=self.name,
        )


def ask(router: Router, session: str) -> asyncio.Task[Completion]:
    return asyncio.create_task(router.generate(PROMPT, sampling=Sampling(), seed=0, session=session))


async def test_sessions_spread_evenly_over_engines() -> None:
    engines = [GatedEngine("0"), GatedEngine("1")]
    router = Router(engines)
    asks = [ask(router, f"s{n}") for n in range(6)]
    await asyncio.sleep(0)
    assert [len(engine.sessions) for engine in engines] == [3, 3]
    for engine in engines:
        engine.gate.set()
    assert {completion.engine for completion in await asyncio.gather(*asks)} == {"0", "1"}


async def test_a_session_stays_where_it_began_even_when_another_engine_is_idle() -> None:
    engines = [GatedEngine("0"), GatedEngine("1")]
    engines[0].gate.set()
    router = Router(engines)
    await ask(router, "a")
    engines[0].gate.clear()
    waiting = [ask(router, session) for session in ("b", "a")]
    await asyncio.sleep(0)
    assert [engine.sessions for engine in engines] == [["a", "b", "a"], []]
    engines[0].gate.set()
    await asyncio.gather(*waiting)


async def test_a_slow_engine_is_given_less() -> None:
    slow, quick = GatedEngine("0"), GatedEngine("1")
    quick.gate.set()
    router = Router([slow, quick])
    stuck = ask(router, "stuck")
    await asyncio.sleep(0)
    assert {(await ask(router, f"s{n}")).engine for n in range(5)} == {"1"}
    slow.gate.set()
    await stuck


async def test_only_so_many_sessions_are_remembered() -> None:
    engine = GatedEngine("0")
    engine.gate.set()
    router = Router([engine], remembered_sessions=3)
    for n in range(10):
        await ask(router, f"s{n}")
    assert list(router._homes) == ["s7", "s8", "s9"]


async def test_an_engine_that_died_is_named_and_the_others_go_on() -> None:
    dead, alive = GatedEngine("0", WorkerDied("engine-0", "killed by SIGKILL")), GatedEngine("1")
    router = Router([dead, alive])
    asks = [ask(router, session) for session in ("a", "b")]
    await asyncio.sleep(0)
    dead.gate.set()
    alive.gate.set()
    with pytest.raises(WorkerDied, match="engine-0 died: killed by SIGKILL"):
        await asks[0]
    assert (await asks[1]).engine == "1"


def test_a_router_without_engines_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an engine"):
        Router([])
