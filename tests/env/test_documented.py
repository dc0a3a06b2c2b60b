"""The environment that `docs/episodes.md` shows is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlhf.types import Message
from tests.env.hosted import hosted
from tests.fakes import TASK

PAGE = Path(__file__).parents[2] / "docs" / "episodes.md"


async def test_the_documented_environment_can_be_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [source] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(source.splitlines()) <= 30
    (tmp_path / "documented.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    async with hosted("GuessTheNumber", module="documented:") as environments:
        session = await environments.open("s")
        first = await session.reset(TASK, seed=3)
        assert not first.done
        hint = await session.step(Message(role="assistant", content="what?"))
        assert (hint.messages[0].content, hint.reward) == ("a number, please", -0.1)
        rewards = [(await session.step(Message(role="assistant", content=str(n)))).reward for n in range(1, 10)]
        assert 1.0 in rewards
        await session.close()
