"""The router, over engines that answer when they are told to."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rlhf.engines.engine import PartialReply
from rlhf.engines.router import Router
from rlhf.errors import EnginesLost, GenerateFailed, WorkerDied
from rlhf.types import Completion, FinishReason, Prompt, SampledTokens, Sampling

PROMPT = Prompt(token_ids=np.array([1, 2], dtype=np.int32))


class GatedEngine:
    """Answers every request once its gate is open; raises `error` when it has one."""

    def __init__(self, name: str, error: Exception | None = None, places: int = 100) -> None:
        self.name, self.error, self.places, self.version = name, error, places, 0
        self.gate = asyncio.Event()
        self.sessions: list[str] = []
        self.partials: list[int] = []

    async def generate(
        self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str, partial: PartialReply | None = None
    ) -> Completion:
        self.sessions.append(session)
        assert partial is not None
        self.partials.append(len(partial.sampled.token_ids))
        await self.gate.wait()
        await asyncio.sleep(0)
        if self.error:
            partial.add(SampledTokens(np.ones(3, np.int32), np.zeros(3, np.float32), np.zeros(3, np.int32)))
            raise self.error
        return Completion(
            token_ids=prompt.token_ids,
            behaviour_logprobs=np.zeros(2, np.float32),
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
    assert list(router._sessions) == ["s7", "s8", "s9"]


def dead(name: str) -> GatedEngine:
    engine = GatedEngine(name, WorkerDied(f"engine-{name}", "killed by SIGKILL"))
    engine.gate.set()
    return engine


async def test_the_requests_of_an_engine_that_died_go_on_at_another_after_what_they_have() -> None:
    alive = GatedEngine("1")
    router = Router([dead("0"), alive])
    alive.gate.set()
    assert (await ask(router, "a")).engine == "1"
    assert alive.partials == [3]
    assert router.engines == [alive]
    assert (await ask(router, "a")).engine == "1", "its home has moved"


async def test_without_any_engine_requests_wait_for_the_next_or_for_the_end() -> None:
    router, late = Router([dead("0")]), GatedEngine("1")
    router.fails_over = True
    waiting = ask(router, "a")
    await asyncio.sleep(0.01)
    late.gate.set()
    router.add(late)
    assert (await waiting).engine == "1"
    router.remove(late)
    waiting = ask(router, "b")
    await asyncio.sleep(0.01)
    router.end(EnginesLost("0 engines are left"))
    with pytest.raises(EnginesLost, match="0 engines are left"):
        await waiting


async def test_without_fail_over_the_loss_of_the_last_engine_is_raised() -> None:
    router = Router([dead("0")])
    for session in ("a", "b"):  # nobody waits for an engine that never comes
        with pytest.raises(WorkerDied, match="engine-0 died: killed by SIGKILL"):
            await ask(router, session)


async def test_a_request_with_which_three_engines_died_fails_alone() -> None:
    alive = GatedEngine("3")
    alive.gate.set()
    router = Router([dead("0"), dead("1"), dead("2"), alive])
    with pytest.raises(
        GenerateFailed, match="2 could not answer session a: 3 engines were lost while serving it: engine-2 died"
    ):
        await ask(router, "a")
    assert (await ask(router, "b")).engine == "3"


async def turns(router: Router, session: str, ended: list[str]) -> None:
    for turn in range(2):
        await router.generate(PROMPT, sampling=Sampling(), seed=turn, session=session)
        ended.append(session)


async def test_where_places_are_short_sessions_of_an_older_version_go_first() -> None:
    engine, ended = GatedEngine("0", places=2), list[str]()
    router = Router([engine])
    older = [asyncio.create_task(turns(router, session, ended)) for session in "abcd"]
    await asyncio.sleep(0)
    engine.version = 1
    newer = [asyncio.create_task(turns(router, session, ended)) for session in "efgh"]
    await asyncio.sleep(0)
    engine.gate.set()
    await asyncio.gather(*older, *newer)
    assert sorted(ended[:8]) == list("aabbccdd"), "a second turn waits for no first turn of newer ones"
    assert sorted(ended[:4]) == list("abcd"), "it waits for those of its version"


async def test_who_waits_goes_to_the_first_engine_that_has_a_place() -> None:
    engines = [GatedEngine("0", places=1), GatedEngine("1", places=1)]
    router = Router(engines)
    asks = [ask(router, session) for session in "abcd"]
    await asyncio.sleep(0)
    assert [engine.sessions for engine in engines] == [["a"], ["b"]], "c and d are nowhere yet"
    engines[1].gate.set()
    assert [(await one).engine for one in asks[1:]] == ["1", "1", "1"]
    router.add(late := GatedEngine("2", places=1))
    waiting = [ask(router, session) for session in ("a", "e")]
    await asyncio.sleep(0)
    assert len(late.sessions) + len(engines[1].sessions) == 4, "an engine that is idle takes the new session"
    engines[0].gate.set()
    late.gate.set()
    assert (await waiting[0]).engine == "0", "the other waited for its own"
    await waiting[1]


async def test_requests_that_wait_for_their_engine_go_to_another_when_it_is_removed() -> None:
    engines = [GatedEngine("0", places=1), GatedEngine("1", places=1)]
    router = Router(engines)
    first, _ = [ask(router, session) for session in "ab"]
    await asyncio.sleep(0)
    again = ask(router, "a")
    await asyncio.sleep(0)
    router.remove(engines[0])
    engines[1].gate.set()
    assert (await again).engine == "1"
    engines[0].gate.set()
    assert (await first).engine == "0"


@pytest.mark.parametrize("given", [False, True], ids=["waiting", "given a place"])
async def test_a_request_that_is_cancelled_takes_no_place(given: bool) -> None:
    engine = GatedEngine("0", places=1)
    router = Router([engine])
    first, second, third = (ask(router, session) for session in "abc")
    await asyncio.sleep(0)
    engine.gate.set()
    while given and router._lines[None][0][2] is router._sessions["b"]:
        await asyncio.sleep(0)
    second.cancel()
    async with asyncio.timeout(5):
        assert (await first, await third)[1].engine == "0"
        assert (await ask(router, "d")).engine == "0"
    assert second.cancelled()
    assert engine.sessions == ["a", "c", "d"]


def test_a_router_without_engines_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an engine"):
        Router([])
