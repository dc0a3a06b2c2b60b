"""The environment that `docs/episodes.md` shows is one."""

from __future__ import annotations

import re
from pathlib import Path

from rlhf.env.hosting.here import HostedEnvironments
from rlhf.types import Message
from tests.fakes import TASK

PAGE = Path(__file__).parents[2] / "docs" / "episodes.md"


async def test_the_documented_environment_can_be_played() -> None:
    [source] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(source.splitlines()) <= 30
    scope: dict[str, object] = {}
    exec(source, scope)
    environments = HostedEnvironments(
        scope["GuessTheNumber"], name="guess", turn_timeout_seconds=5, start_timeout_seconds=5, max_sessions=1
    )
    await environments.start()
    session = await environments.open("s")
    first = await session.reset(TASK, seed=3)
    assert not first.done
    hint = await session.step(Message(role="assistant", content="what?"))
    assert (hint.messages[0].content, hint.reward) == ("a number, please", -0.1)
    rewards = [(await session.step(Message(role="assistant", content=str(n)))).reward for n in range(1, 10)]
    assert 1.0 in rewards
    await session.close()
