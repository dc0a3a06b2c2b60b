"""Servers that are not ours: text becomes their action, and what they say becomes text."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.env.client.dialect import InvalidAction, Ours, Stock, dialect_of
from rlhf.env.encoding import answer_data, observation_from, spec_data, spec_from
from rlhf.types import EnvironmentSpec, Message, Observation, Tool, ToolCall

SPEC = EnvironmentSpec(name="e", description="d")
ONE_TEXT = {"properties": {"code": {"type": "string"}, "metadata": {"type": "object"}}, "required": ["code"]}
A_MOVE = {
    "type": "object",
    "properties": {"move": {"type": "integer"}, "by": {"type": "string"}},
    "required": ["move", "by"],
}


def stock(schema: dict[str, Any]) -> Stock:
    return Stock(spec=SPEC, action_schema=schema)


def say(text: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls)


def test_the_one_text_field_that_an_action_requires_gets_the_text():
    assert stock(ONE_TEXT).action(say("print(1)"), "r") == {"code": "print(1)"}


def test_any_other_action_is_the_text_as_json():
    assert stock(A_MOVE).action(say('{"move": 3, "by": "me"}'), "r") == {"move": 3, "by": "me"}


@pytest.mark.parametrize("text", ["go", "3", "[1]", "[" * 100_000])
def test_text_that_is_no_action_is_refused_with_what_an_action_is(text: str):
    with pytest.raises(InvalidAction, match="JSON object"):
        stock(A_MOVE).action(say(text), "r")


def test_a_tool_call_becomes_the_wires_and_two_at_once_are_refused():
    call = ToolCall(id="c", name="add", arguments={"a": 1})
    assert stock({}).action(say("", call), "r") == {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1}}
    with pytest.raises(InvalidAction, match="one tool call at a time"):
        stock({}).action(say("", call, call), "r")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"echoed": "hi"}, "hi"),
        ({"echoed": "hi", "metadata": {"time": 1}}, "hi"),
        ({"board": [1, 2], "turn": "x"}, '{"board": [1, 2], "turn": "x"}'),
        ({"tool_name": "add", "result": {"content": [{"type": "text", "text": "5"}]}, "error": None}, "5"),
        ({"tool_name": "add", "result": None, "error": {"error_type": "x", "message": "no tool"}}, "no tool"),
    ],
)
def test_what_a_stock_server_says_is_text_for_the_policy(said: dict[str, Any], text: str):
    observation = stock({}).observation({"observation": said, "reward": 1, "done": False})
    assert observation.messages == (Message(role="user", content=text),)
    assert observation.reward == 1.0


def test_a_stock_episode_that_is_done_is_terminated_unless_its_metadata_says_truncated():
    done = {"observation": {"a": "b"}, "reward": None, "done": True}
    assert stock({}).observation(done).terminated
    cut = stock({}).observation(done | {"metadata": {"truncated": True}})
    assert (cut.terminated, cut.truncated) == (False, True)


def test_everything_an_observation_holds_survives_our_wire():
    call = ToolCall(id="c", name="add", arguments={"a": [1, {"b": None}]})
    observation = Observation(
        messages=(
            Message(role="tool", content="ü", tool_call_id="c"),
            Message(role="user", content="", tool_calls=(call,)),
        ),
        reward=0.5,
        truncated=True,
        role="other",
        info={"left": 2},
    )
    assert observation_from(answer_data(observation)) == observation


def test_a_spec_survives_our_wire_and_tells_our_servers_from_others():
    tool = Tool(name="add", description="adds", parameters={"type": "object"})
    spec = EnvironmentSpec(name="e", description="d", tools=(tool,), roles=("x", "o"))
    assert spec_from(spec_data(spec)) == spec
    assert dialect_of({"extras": {"version": 1, "spec": spec_data(spec)}}, {}) == Ours(spec=spec)
    assert dialect_of({"name": "e", "description": "d"}, {"action": ONE_TEXT}) == stock(ONE_TEXT)
