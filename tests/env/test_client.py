"""Our client and our servers: whatever breaks is a failure with a name, and nothing is stepped twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rlhf.env.client.pool import EnvironmentPool
from rlhf.env.client.remote import Address, Patience
from rlhf.env.hosting.isolation import Deadlines
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.protocols import Environment
from rlhf.types import Message, Observation, Task
from tests.env.faulty import proxied
from tests.env.serving import active, comes_to, quick, served

pytestmark = pytest.mark.engine
QUICK = Patience(deadlines=Deadlines(open_seconds=5, reset_seconds=5, step_seconds=5), pause_seconds=0.01)


def task(name: str = "task") -> Task:
    return Task(id=name, messages=(Message(role="user", content="play"),), row={"column": 1})


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


@pytest.fixture(scope="module")
def nonce() -> Iterator[str]:
    with served("Nonce") as url:
        yield url


@pytest.fixture
def disposable() -> Iterator[str]:
    with served("Nonce") as url:
        yield url


async def play_until(environment: Environment, word: str, when: str) -> None:
    await environment.reset(task(word if when == "reset" else "fine"), seed=0)
    await environment.step(say(word))


async def connected(url: str, patience: Patience = QUICK) -> EnvironmentPool:
    return await EnvironmentPool.connect([Address(url=url)], patience)


async def test_an_episode_through_the_client_is_the_episode_itself():
    with served("Guess") as url:
        environments = await connected(url)
        environment = await environments.open("s")
        first = await environment.reset(task(), seed=4)
        steps = [await environment.step(say("none")) for _ in range(3)]
        await environment.close()
        assert environments.spec.name == "guess"
        assert first == Observation(messages=first.messages)
        assert [step.info for step in steps] == [{"left": 2}, {"left": 1}, {"left": 0}]
        assert (steps[-1].truncated, steps[-1].terminated) == (True, False)
        assert await comes_to(url, 0)


@pytest.mark.parametrize(("word", "kind"), [("raise", "raised"), ("nan", "protocol"), ("hang", "timeout")])
async def test_what_breaks_in_an_environment_is_a_failure_of_its_kind(word: str, kind: str):
    with served("Moody", deadlines=quick(1.0)) as url:
        environments = await connected(url)
        for when in ("reset", "step"):
            environment = await environments.open("s")
            with pytest.raises(EnvironmentFailed) as failed:
                await play_until(environment, word, when)
            assert failed.value.kind == kind
            await environment.close()
        assert await comes_to(url, 0)
        healthy = await environments.open("s")
        await healthy.reset(task("fine"), seed=0)
        assert (await healthy.step(say("fine"))).reward == 0.5
        await healthy.close()


async def test_a_message_beyond_a_limit_is_a_failure_with_its_size_and_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served("Nonce") as url:
        environments = await connected(url)
        monkeypatch.setattr("rlhf.env.client.remote.MESSAGE_BYTES", 50_000)
        for characters in (30_000, 5 * 2**20):  # its answer is too long for the client, and it for the server
            environment = await environments.open("s")
            await environment.reset(task("mine"), seed=0)
            with pytest.raises(EnvironmentFailed, match=r"protocol: the message is too long: frame with \d+ bytes exc"):
                await environment.step(say("x" * characters))
            await environment.close()


async def test_nan_in_a_note_loses_no_episode_and_is_null_beyond_the_wire() -> None:
    for isolation in ("thread", "process"):
        with served("Moody", isolation) as url:
            environment = await (await connected(url)).open("s")
            assert (await environment.reset(task("info"), seed=0)).info == {"loss": None}
            assert (await environment.step(say("fine"))).reward == 0.5
            await environment.close()


async def test_a_dropped_answer_is_asked_for_again_and_stepped_once(disposable: str):
    async with proxied(disposable, lambda piece: "drop" if piece % 5 == 0 else "pass") as proxy:
        environment = await (await connected(proxy.url)).open("s")
        await environment.reset(task("mine"), seed=0)
        rewards = [(await environment.step(say("x"))).reward for _ in range(20)]
        await environment.close()
    assert rewards == [float(number) for number in range(1, 21)]
    assert proxy.pieces > 25


async def test_a_silent_connection_is_left_for_another_within_the_deadline(disposable: str):
    patience = Patience(deadlines=Deadlines(step_seconds=3), pause_seconds=0.01)
    async with proxied(disposable, lambda piece: "swallow" if piece == 8 else "pass") as proxy:
        environment = await (await connected(proxy.url, patience)).open("s")
        await environment.reset(task("mine"), seed=0)
        rewards = [(await environment.step(say("x"))).reward for _ in range(6)]
        await environment.close()
    assert rewards == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


async def test_a_session_whose_server_is_gone_is_lost_and_has_no_reward():
    with served("Nonce") as url:
        environment = await (await connected(url)).open("s")
        await environment.reset(task(), seed=0)
    with pytest.raises(EnvironmentFailed) as failed:
        await environment.step(say("x"))
    assert failed.value.kind == "lost"
    await environment.close()


async def test_a_session_that_a_new_server_does_not_know_is_lost_and_not_begun_again(nonce: str):
    with served("Nonce", lease_seconds=0.2) as url:
        environment = await (await connected(url)).open("s")
        await environment.reset(task(), seed=0)
        environment._environment.abort()
        assert await comes_to(url, 0)
        with pytest.raises(EnvironmentFailed) as failed:
            await environment.step(say("x"))
    assert failed.value.kind == "lost"


async def test_no_server_no_place_and_no_token_are_told_apart():
    impatient = Patience(deadlines=Deadlines(open_seconds=3.0), pause_seconds=0.01)
    with pytest.raises(EnvironmentFailed) as nobody:
        await connected("http://127.0.0.1:9", impatient)
    with served("Nonce", max_sessions=1) as url:
        environments = await connected(url, impatient)
        first = await environments.open("first")
        with pytest.raises(EnvironmentFailed) as full:
            await environments.open("second")
        await first.close()
    with served("Nonce", token="secret") as url, pytest.raises(EnvironmentFailed) as stranger:
        await connected(url, impatient)
    assert [error.value.kind for error in (nobody, full, stranger)] == ["lost", "refused", "refused"]


async def test_whoever_waits_for_a_place_gets_the_next_that_is_free():
    with served("Nonce", max_sessions=1) as url:
        environments = await connected(url)
        first = await environments.open("first")
        second = asyncio.create_task(environments.open("second"))
        await asyncio.sleep(0.1)
        assert not second.done()
        await first.close()
        await (await second).close()


async def test_two_hundred_sessions_at_once_keep_their_own_state(nonce: str):
    environments = await connected(nonce, Patience())

    async def play(name: str) -> list[str]:
        environment = await environments.open(name)
        await environment.reset(task(name), seed=0)
        texts = [(await environment.step(say(name))).messages[0].content for _ in range(5)]
        await environment.close()
        return texts

    names = [f"session-{number}" for number in range(200)]
    played = await asyncio.gather(*map(play, names))
    assert played == [[f"{name} {step} {name}" for step in range(1, 6)] for name in names]
    assert await comes_to(nonce, 0)


async def test_a_pool_fills_its_servers_evenly_and_goes_round_one_that_is_gone():
    with served("Nonce") as one, served("Nonce") as two:
        pool = await EnvironmentPool.connect([Address(url=one), Address(url=two)], QUICK)
        sessions = [await pool.open(str(number)) for number in range(6)]
        assert (await active(one), await active(two)) == (3, 3)
        for session in sessions:
            await session.close()
        with served("Nonce") as three:
            pool = await EnvironmentPool.connect([Address(url=three), Address(url=one)], QUICK)
        for number in range(4):  # three is gone
            session = await pool.open(str(number))
            await session.reset(task(), seed=0)
            await session.close()


async def test_a_pool_of_different_environments_is_refused(nonce: str):
    with served("Guess") as other, pytest.raises(ConfigError, match="different environments"):
        await EnvironmentPool.connect([Address(url=nonce), Address(url=other)], QUICK)
