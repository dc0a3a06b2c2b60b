"""A class that opens sessions itself is hosted as it is."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from rlhf.env.hosting import own
from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.env.hosting.own import OwnIsolation
from rlhf.errors import ConfigError, DeadlinePassed, EnvironmentFailed
from rlhf.types import Message
from tests.env.adapters.sessions import HostedHere
from tests.env.environments import Guess
from tests.fakes import TASK


class Own(HostedHere):
    """Sessions of the guessing game."""

    stopped = 0

    def __init__(self, guesses: int | None) -> None:
        if guesses is None:
            raise ValueError("no guesses")
        super().__init__(lambda: Guess(guesses))

    def stop(self) -> None:
        Own.stopped += 1


class Hangs(Own):
    """It takes its time to be made, and to stop."""

    def __init__(self, made: float, stopped: float) -> None:
        time.sleep(made)
        super().__init__(1)
        self._seconds = stopped

    def stop(self) -> None:
        time.sleep(self._seconds)


def isolation(name: str, **arguments: object) -> OwnIsolation:
    return OwnIsolation(Factory(name=name, arguments=arguments), Deadlines())


async def test_its_sessions_are_its_own_and_it_is_stopped_at_the_end() -> None:
    hosting, before = isolation("tests.env.test_own_isolation:Own", guesses=1), Own.stopped
    await hosting.start()
    assert hosting.spec.name == "guess"
    session = await hosting.open("s")
    await session.reset(TASK, seed=0)
    end = await session.step(Message(role="assistant", content="none"))
    assert (end.truncated, end.info) == (True, {"left": 0})
    await session.close()
    await hosting.stop()
    assert Own.stopped == before + 1


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("tests.env.test_own_isolation:Own", {"guesses": None}, "cannot be made: ValueError: no guesses"),
        ("tests.env.environments:Guess", {}, "opens no sessions; serve it with --isolation thread or process"),
        ("tests.env.test_own_isolation:Own", {"colour": 1}, "cannot be made: TypeError"),
    ],
)
async def test_what_opens_no_sessions_is_refused(name: str, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        await isolation(name, **arguments).start()


async def test_what_hangs_at_its_start_or_its_end_holds_up_nobody_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own, "START_SECONDS", 0.3)
    monkeypatch.setattr(own, "STOP_SECONDS", 0.3)
    ticks = asyncio.create_task(ticking())
    with pytest.raises(DeadlinePassed, match="the start of environment"):
        await isolation("tests.env.test_own_isolation:Hangs", made=2, stopped=0).start()
    hosting = isolation("tests.env.test_own_isolation:Hangs", made=0, stopped=2)
    await hosting.start()
    with pytest.raises(EnvironmentFailed, match="stop did not return within"):
        await hosting.stop()
    ticks.cancel()
    assert max(await ticks) < 1.5, "the event loop went on"


async def ticking() -> list[float]:
    """Until it is cancelled: how long each nap of a hundredth of a second took."""
    naps: list[float] = []
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            naps.append(time.monotonic() - began)
    return naps
