"""The conformance checks pass on a server that conforms, and find what is wrong with one that does not."""

from __future__ import annotations

import json
import random

import httpx
import pytest

from rlhf.env.check import (
    CHECKS,
    CheckResult,
    Target,
    check_result,
    check_server,
    example_action,
)
from rlhf.env.client.remote import Address
from rlhf.errors import UserError
from rlhf.types import Message, Observation, Task
from tests.env.environments import Guess, said
from tests.env.serving import served

pytestmark = pytest.mark.engine


class Dice(Guess):
    """Rolls without its seed, and all instances share one count."""

    rolled = 0

    def reset(self, task: Task, *, seed: int) -> Observation:
        Dice.rolled = 0
        return Observation(messages=said(str(random.random())))

    def step(self, action: Message) -> Observation:
        Dice.rolled += 1
        return Observation(messages=said(str(Dice.rolled)), terminated=Dice.rolled > 5)


class Global(Guess):
    """Seeds the generator of the module `random`, and shows its numbers late."""

    def __init__(self) -> None:
        self._steps = 0

    def reset(self, task: Task, *, seed: int) -> Observation:
        random.seed(seed)
        return Observation(messages=said("go"))

    def step(self, action: Message) -> Observation:
        self._steps += 1
        return Observation(messages=said(str(random.random()) if self._steps == 3 else "wait"))


async def findings(url: str) -> dict[str, CheckResult]:
    return {one.name: one async for one in check_server(Address(url=url))}


async def test_our_server_conforms_in_every_check():
    with served("Guess", max_sessions=25) as url:
        found = await findings(url)
    assert set(found) == set(CHECKS)
    assert all(one.passed for one in found.values()), found


@pytest.mark.parametrize(
    ("name", "wrong"), [("Dice", {"seed determinism", "interleaved sessions"}), ("Global", {"interleaved sessions"})]
)
async def test_an_environment_that_forgets_its_seed_or_shares_state_is_found_out(name: str, wrong: set[str]) -> None:
    with served(name, module="tests.env.test_check:", max_sessions=25) as url:
        found = await findings(url)
    assert {check for check, one in found.items() if not one.passed} == wrong
    assert "random.Random(seed)" in found["interleaved sessions"].detail


async def test_a_server_whose_tool_has_an_invalid_schema_does_not_conform() -> None:
    tool = {"name": "look", "description": "", "input_schema": {"type": "dict"}}
    spec = {"name": "n", "description": "d", "tools": [tool], "roles": ["agent"]}
    answers = {
        "/health": {"status": "healthy"},
        "/metadata": {"name": "n", "description": "d", "extras": {"version": 1, "spec": spec}},
        "/schema": {"action": {}, "observation": {}, "state": {}},
    }

    def answer(asked: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=httpx.ByteStream(json.dumps(answers[asked.url.path]).encode()))

    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        target = Target(address=Address(url="http://x"), http=http, action={})
        result = await check_result("metadata", target)
    assert not result.passed
    assert "the schema of tool 'look' is invalid at $.type: 'dict'" in result.detail


async def test_where_no_server_is_the_command_says_so():
    with pytest.raises(UserError, match="no environment server"):
        await findings("http://127.0.0.1:9")


def test_an_action_is_made_of_what_its_schema_requires():
    schema = {
        "properties": {"move": {"enum": ["up", "down"]}, "by": {"type": "integer", "minimum": 2}, "why": {}},
        "required": ["move", "by"],
    }
    assert example_action(schema) == {"move": "up", "by": 2}
