"""The agents of docs/frameworks.md, in their frameworks as published, against the endpoint."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tests.docs.blocks import ROOT
from tests.ecosystem.venvs import PROGRAM_SECONDS, PROGRAMS, environment, python
from tests.rollout.endpoint.serving import scripted, served

pytestmark = pytest.mark.ecosystem

AGENTS = {
    heading.split("\n", 1)[0]: heading.split("```python\n", 1)[1].split("```", 1)[0]
    for heading in (ROOT / "docs" / "frameworks.md").read_text().split("\n## ")[1:]
}
CALL = '<tool_call>{"name": "add", "arguments": {"x": 1, "y": 2}}</tool_call>'
ANSWER = '<tool_call>{"name": "final_answer", "arguments": {"answer": "3"}}</tool_call>'


@pytest.mark.parametrize("name", AGENTS)
async def test_a_tool_call_and_an_answer_are_one_context(name: str, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENTS[name])
    engine = scripted(CALL, ANSWER if name == "smolagents" else "3")
    async with served(engine, client_stop="cut", context=60_000) as server:
        async with httpx.AsyncClient(trust_env=False) as asking:
            session = (await asking.post(f"{server.url}/sessions")).json()
        playing = await asyncio.create_subprocess_exec(
            str(python("frameworks")), str(PROGRAMS / "framework.py"), str(tmp_path / "agent.py"), session["base_url"],
            env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, errors = await asyncio.wait_for(playing.communicate(), PROGRAM_SECONDS)
        assert playing.returncode == 0, errors.decode()[-2000:]
        assert json.loads(out.splitlines()[-1]) == {"reward": 1.0}
        async with httpx.AsyncClient(trust_env=False) as asking:
            await asking.post(f"{server.url}/sessions/{session['id']}/end", json={"reward": 1})
    [(trajectory, _)] = server.kept
    turns = [1, 1] if name == "smolagents" else [2]  # it sends calls back as text
    assert [(one.thread, len(one.turns)) for one in trajectory.segments] == [("main", count) for count in turns]
    assert trajectory.action_tokens == sum(len(said.token_ids) for said in engine.said)
