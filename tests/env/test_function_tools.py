"""Functions and classes as users write them, as tools: what the policy is told of them, and what it reads."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from rlhf.env.config import EnvironmentConfig
from rlhf.env.function_tools import FunctionTools, found_tools
from rlhf.env.starting import factory_of
from rlhf.errors import ConfigError
from rlhf.types import Message, Observation, Task, ToolCall
from tests.env.hosted import hosted

HERE = "tests.env.test_function_tools:"
TASK = Task(id="0", messages=(Message(role="user", content="Buy tea."),), row={"budget": 3, "answer": "tea"})


@dataclass
class Price:
    euros: int


def search(
    query: str, limit: int = 5, order: Literal["name", "price"] = "name", most: Price | None = None
) -> list[str]:
    """Finds articles.

    Args:
        query: words of the article
        limit: how many
    """
    return [query] * min(limit, most.euros if most else limit)


async def wait(seconds: float) -> str:
    """Waits."""
    await asyncio.sleep(seconds)
    return "waited"


def block(seconds: float) -> str:
    """Waits, and lets nobody else."""
    time.sleep(seconds)
    return "waited"


def broken(code: str) -> str:
    """Breaks."""
    raise KeyError(code)


def leave() -> str:
    """Ends the program."""
    raise SystemExit(3)


def lone() -> str:
    """Says what no tokenizer reads."""
    return "\ud800" + "x" * 40


class Cart:
    """A shop that knows the row of its task."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.connection = object()
        self._secret = 1

    def reset(self, budget: int) -> str:
        self.budget = budget
        return f"You have {budget} euros."

    async def add(self, item: str) -> int:
        """Puts an article into the cart."""
        self.items.append(item)
        return len(self.items)

    @staticmethod
    def price(item: str) -> Any:
        """Tells a price."""
        return {"price": len(item)}


def undescribed(query: str) -> str:
    return query


def untyped(query) -> str:  # type: ignore[no-untyped-def]
    """Finds."""
    return str(query)


def many(*queries: str) -> str:
    """Finds."""
    return ""


def strange(query: asyncio.Lock) -> str:
    """Finds."""
    return ""


def unknown(query: Nothing) -> str:  # type: ignore[name-defined]  # noqa: F821
    """Finds."""
    return ""


class Empty:
    def _private(self) -> None: ...


class Configured:
    def __init__(self, path: str) -> None: ...
    def read(self) -> None:
        """Reads."""


def playing(*names: str, seconds: float = 5.0, longest: int = 200) -> FunctionTools:
    environment = FunctionTools([HERE + name for name in names], seconds=seconds, longest=longest)
    environment.reset(TASK, seed=0)
    return environment


def asked(name: str, **arguments: object) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(id="a", name=name, arguments=arguments),))


def said(environment: FunctionTools, name: str, **arguments: object) -> str:
    (message,) = environment.step(asked(name, **arguments)).messages
    assert (message.role, message.tool_call_id) == ("tool", "a")
    return message.content


def test_the_policy_is_told_names_meanings_and_types_and_nothing_is_called() -> None:
    search_tool, leave_tool, add, price = (
        one.tool for one in found_tools((HERE + "search", HERE + "leave", HERE + "Cart"))
    )
    assert (search_tool.name, search_tool.description) == ("search", "Finds articles.")
    described = search_tool.parameters["properties"]
    assert described["query"] == {"type": "string", "description": "words of the article"}
    assert described["order"] == {"type": "string", "enum": ["name", "price"]}
    assert search_tool.parameters["required"] == ["query"]
    assert (leave_tool.parameters["properties"], add.name, price.name) == ({}, "add", "price")
    assert list(add.parameters["properties"]) == list(price.parameters["properties"]) == ["item"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["undescribed"], "without a docstring; describe in one what it does"),
        (["untyped"], "whose parameter 'query' has no type hint; write, say, query: str"),
        (["many"], "takes *queries: 'str'; the policy gives arguments by name"),
        (["strange"], "whose parameters have no JSON schema: Unable to generate"),
        (["unknown"], "whose type hints cannot be read: NameError"),
        (["Empty"], "a class without public methods"),
        (["Configured"], "cannot be called with 0 values"),
        (["search", "search"], "two tools named 'search'"),
        (["Cart", "Other"], "the classes Cart, Other, but an episode has one state"),
        (["nothing"], "cannot be imported"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_with_its_name(names: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=r"environment\.tools (is|has) ") as refused:
        found_tools(tuple(HERE + name for name in names))
    assert words in str(refused.value)


class Other:
    def buy(self) -> None:
        """Buys."""


def test_results_are_read_as_text_and_arguments_come_in_their_types() -> None:
    environment = playing("search", "lone", longest=29)
    assert said(environment, "search", query="tea", limit="2") == '["tea","tea"]'
    assert said(environment, "search", query="tea", most={"euros": 1}) == '["tea"]'
    assert said(environment, "search", limit=2) == "error: search: query: Field required"
    assert said(environment, "search", query="tea", colour="red").startswith("error: search: colour: Extra inputs")
    assert said(environment, "lone") == "�xxxxxxxxx\n… cut …\nxxxxxxxxxx"
    assert environment.step(Message(role="assistant", content="tea")) == Observation(
        messages=(), terminated=True, info={"tool_errors": 0}
    )
    environment.close()


def test_a_call_that_fails_or_takes_too_long_is_answered_and_counted() -> None:
    environment = playing("broken", "leave", "block", "wait", seconds=0.3)
    assert said(environment, "broken", code="E7") == "error: KeyError: 'E7'"
    assert said(environment, "leave") == "error: SystemExit: 3"
    assert said(environment, "wait", seconds=30) == "error: wait did not return within 0.3 s"
    assert said(environment, "block", seconds=3) == "error: block did not return within 0.3 s"
    assert said(environment, "wait", seconds=0) == "waited"
    assert environment.step(asked("wait", seconds=0)).info == {"tool_errors": 4}
    environment.close()


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_an_episode_has_its_own_instance_whose_state_a_reward_sees(isolation: Any) -> None:
    config = EnvironmentConfig(tools=(HERE + "Cart",))
    made = factory_of(config)
    module, _, name = made.name.partition(":")
    async with hosted(name, module=f"{module}:", arguments=made.arguments, isolation=isolation) as environments:
        one, other = [await environments.open(session) for session in ("one", "other")]
        first = await one.reset(TASK, seed=0)
        assert first.messages[0].content == "Buy tea.\n\nYou have 3 euros."
        await other.reset(TASK, seed=0)
        assert [m.content for m in (await one.step(asked("add", item="tea"))).messages] == ["1"]
        assert [m.content for m in (await one.step(asked("price", item="tea"))).messages] == ['{"price":3}']
        end = await one.step(Message(role="assistant", content="done"))
        assert (end.done, dict(end.info)) == (True, {"items": ["tea"], "budget": 3, "tool_errors": 0})
        assert (await other.step(Message(role="assistant", content="done"))).info["items"] == []
        for session in (one, other):
            await session.close()
