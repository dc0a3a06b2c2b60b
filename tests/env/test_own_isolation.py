"""A class that opens sessions itself is hosted as it is."""

from __future__ import annotations

import pytest

from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.env.hosting.own import OwnIsolation
from rlhf.errors import ConfigError
from rlhf.types import Message
from tests.env.adapters.sessions import HostedHere
from tests.env.environments import Guess
from tests.fakes import TASK


class Own(HostedHere):
    """Sessions of the guessing game."""

    stopped = 0

    def __init__(self, guesses: int) -> None:
        super().__init__(lambda: Guess(guesses))

    def stop(self) -> None:
        Own.stopped += 1


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
        ("tests.env.environments:Guess", {}, "opens no sessions; serve it with --isolation thread or process"),
        ("tests.env.test_own_isolation:Own", {"colour": 1}, "cannot be made: TypeError"),
    ],
)
async def test_what_opens_no_sessions_is_refused(name: str, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        await isolation(name, **arguments).start()
