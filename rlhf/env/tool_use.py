"""Episodes with tools: calls are answered, one message a call, until a reply without calls, which is the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.env.single_turn import concluded, score_of
from rlhf.types import EnvironmentSpec, Message, Observation, Task, Tool, ToolCall


class RefusedCall(Exception):
    """A call that the policy got wrong: its text is the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """A tool and what does its work: arguments to text. A `RefusedCall` is the policy's mistake, all else is ours."""

    tool: Tool
    run: Callable[[Mapping[str, Any]], str]


class ToolUseEnvironment:
    """What the task asks, with these tools at hand.

    A call that makes no sense (an unknown tool, a wrong argument) is answered with `error: …` and costs nothing but its
    turn. `score` is as in `SingleTurnEnvironment`.
    """

    def __init__(self, name: str, description: str, tools: Sequence[Handled], score: str | None = None) -> None:
        self._tools = {handled.tool.name: handled for handled in tools}
        self._score = score_of(score)
        self.spec = EnvironmentSpec(name=name, description=description, tools=tuple(handled.tool for handled in tools))

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._task = task
        return Observation(messages=task.messages)

    def step(self, action: Message) -> Observation:
        if not action.tool_calls:
            return concluded(action, self._task, self._score)
        return Observation(messages=tuple(self._answered(call) for call in action.tool_calls))

    def close(self) -> None:
        """Nothing is held."""

    def _answered(self, call: ToolCall) -> Message:
        return Message(role="tool", content=self._result(call), tool_call_id=call.id)

    def _result(self, call: ToolCall) -> str:
        handled = self._tools.get(call.name)
        if handled is None:
            return f"error: there is no tool {call.name!r}; there are: {', '.join(self._tools)}"
        try:
            return handled.run(call.arguments)
        except RefusedCall as refused:
            return f"error: {refused}"


def text_argument(arguments: Mapping[str, Any], name: str) -> str:
    """The text under `name`. Raises `RefusedCall` when it is missing or no text."""
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise RefusedCall(f"give the argument {name!r} as text; the call has {sorted(arguments)}")
    return value


def text_tool(name: str, description: str, argument: str, meaning: str) -> Tool:
    """A tool with one argument that is text."""
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": meaning}},
        "required": [argument],
    }
    return Tool(name=name, description=description, parameters=parameters)
