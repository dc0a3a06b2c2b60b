"""The environment that `docs/environments.md` shows is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlhf.types import Message
from tests.env.hosted import hosted
from tests.fakes import TASK

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


async def test_the_documented_environment_can_be_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(source.splitlines()) <= 30
    (tmp_path / "documented.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    async with hosted("Guess", module="documented:", arguments={"guesses": 9}) as environments:
        session = await environments.open("s")
        assert not (await session.reset(TASK, seed=3)).done
        for number in range(1, 10):
            heard = await session.step(Message(role="assistant", content=str(number)))
            if heard.done:
                break
            assert (heard.messages[0].content, heard.reward) == ("Wrong.", 0.0)
        assert (heard.reward, heard.terminated) == (1.0, True)
        await session.close()
    async with hosted("Guess", module="documented:") as environments:
        session = await environments.open("s")
        await session.reset(TASK, seed=3)
        ends = [(await session.step(Message(role="assistant", content="what?"))).truncated for _ in range(3)]
        assert ends == [False, False, True]
        await session.close()
