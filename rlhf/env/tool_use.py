"""Base class of environments with tools: a reply with calls gets their results; a reply without is the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.env.single_turn import SingleTurnEnvironment
from rlhf.types import EnvironmentSpec, Message, Observation, Tool, ToolCall

CUT = "\n… cut …\n"


class RefusedCall(Exception):
    """An invalid call of the policy: the message is sent back to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """A tool and its implementation. A `RefusedCall` is the policy's error, any other exception is ours."""

    tool: Tool
    run: Callable[[Mapping[str, Any]], str]


class ToolUseEnvironment(SingleTurnEnvironment):
    """Asks the task's question, with these tools. An invalid call gets `error: …` and costs only its turn."""

    def __init__(self, name: str, description: str, tools: Sequence[Handled], score: str | None = None) -> None:
        super().__init__(score=score)
        self._tools = {handled.tool.name: handled for handled in tools}
        self.spec = EnvironmentSpec(name=name, description=description, tools=tuple(handled.tool for handled in tools))

    def step(self, action: Message) -> Observation:
        if not action.tool_calls:
            return super().step(action)
        results = [Message(role="tool", content=self._result(call), tool_call_id=call.id) for call in action.tool_calls]
        return Observation(messages=tuple(results))

    def _result(self, call: ToolCall) -> str:
        handled = self._tools.get(call.name)
        if handled is None:
            return f"error: there is no tool {call.name!r}; use one of {', '.join(self._tools)}"
        try:
            return handled.run(call.arguments)
        except RefusedCall as refused:
            return f"error: {refused}"


def text_argument(arguments: Mapping[str, Any], name: str) -> str:
    """Return the text argument `name`. Raises `RefusedCall` when it is missing or not text."""
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise RefusedCall(
            f"the argument {name!r} must be a non-empty string; the call has the arguments {sorted(arguments)}"
        )
    return value


def shortened(text: str, longest: int) -> str:
    """Return the text, with its middle cut out if it is longer than `longest`."""
    half = max(1, (longest - len(CUT)) // 2)
    return text if len(text) <= longest else text[:half] + CUT + text[-half:]


def text_tool(name: str, description: str, argument: str, meaning: str) -> Tool:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": meaning}},
        "required": [argument],
    }
    return Tool(name=name, description=description, parameters=parameters)
