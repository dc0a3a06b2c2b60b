"""Base class of environments with tools: a reply with calls gets their results; a reply without is the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.chat.shown import Shown, without_marks
from rlhf.env.single_turn import SingleTurnEnvironment
from rlhf.images import IMAGE_MARK
from rlhf.types import EnvironmentSpec, Message, Observation, Tool, ToolCall

CUT = "\n… cut …\n"


class RefusedCall(Exception):
    """An invalid call of the policy: the message is sent back to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """A tool and its implementation. A `RefusedCall` is the policy's error, any other exception is ours."""

    tool: Tool
    run: Callable[[Mapping[str, Any]], str | Shown]


class ToolUseEnvironment(SingleTurnEnvironment):
    """Asks the task's question, with these tools. An invalid call gets `error: …` and costs only its turn."""

    def __init__(self, name: str, description: str, tools: Sequence[Handled], score: str | None = None) -> None:
        super().__init__(score=score)
        self._tools = {handled.tool.name: handled for handled in tools}
        self.spec = EnvironmentSpec(name=name, description=description, tools=tuple(handled.tool for handled in tools))

    def step(self, action: Message) -> Observation:
        if not action.tool_calls:
            return super().step(action)
        return Observation(messages=tuple(self._message(call) for call in action.tool_calls))

    def _message(self, call: ToolCall) -> Message:
        result = self._result(call)
        if isinstance(result, Shown) and result.images:
            return Message(role="tool", content=result.text, images=result.images, tool_call_id=call.id)
        text = result.text if isinstance(result, Shown) else result
        return Message(role="tool", content=without_marks(text), tool_call_id=call.id)

    def _result(self, call: ToolCall) -> str | Shown:
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


def shortened_shown(given: Shown, longest: int) -> Shown:
    """Return the content, with its middle and the images there cut out if the text is longer than `longest`."""
    text, half = shortened(given.text, longest), max(1, (longest - len(CUT)) // 2)
    if text == given.text:
        return given
    before, behind = given.text[:half].count(IMAGE_MARK), given.text[-half:].count(IMAGE_MARK)
    return Shown(text, given.images[:before] + given.images[len(given.images) - behind :] if given.images else ())


def text_tool(name: str, description: str, argument: str, meaning: str) -> Tool:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": meaning}},
        "required": [argument],
    }
    return Tool(name=name, description=description, parameters=parameters)
