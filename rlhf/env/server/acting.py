"""Perform wire-format actions on a session: the policy's messages, and tool calls."""

from __future__ import annotations

from enum import StrEnum

import jsonschema

from rlhf.env.encoding import action_from, answer_data, dumps, joined_text, tool_data
from rlhf.env.server.sessions import EnvironmentSession
from rlhf.env.wire import CallTool, Code, EnvironmentRefused, Json, ListTools, parse_action
from rlhf.http.untrusted_text import InvalidJson
from rlhf.types import EnvironmentSpec, Message, Tool, ToolCall


class ToolError(StrEnum):
    """Why a call did not reach the environment. It is an observation for the policy, and does not count as a step."""

    NOT_FOUND = "tool_not_found"
    INVALID = "invalid_args"


class InvalidToolCall(Exception):
    """An invalid tool call."""

    def __init__(self, error_type: ToolError, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type


async def act(session: EnvironmentSession, spec: EnvironmentSpec, data: Json) -> Json:
    """Return the `data` of the answer to one action. Raises `EnvironmentRefused`."""
    action = parse_action(data, bool(spec.tools))
    request_id = action.metadata.request_id
    if isinstance(action, ListTools):
        return unrewarded({"tools": [tool_data(tool) for tool in spec.tools]})
    if isinstance(action, CallTool):
        return await call_tool(session, spec, action.tool_name, action.arguments, request_id)
    return answer_data(await session.step(action_from(action), request_id))


async def call_tool(
    session: EnvironmentSession, spec: EnvironmentSpec, name: str, arguments: object, request_id: str | None = None
) -> Json:
    """Perform one tool call as a step; an invalid call is answered without a step. Raises `EnvironmentRefused`."""
    try:
        call = tool_call(spec, f"call-{session.steps}", name, arguments)
    except InvalidToolCall as invalid:
        error = {"error_type": invalid.error_type, "message": str(invalid)}
        return unrewarded({"tool_name": name, "result": None, "error": error})
    action = Message(role="assistant", content="", tool_calls=(call,))
    observation = await session.step(action, request_id)
    answer, text = answer_data(observation), joined_text(observation.messages)
    content = [{"type": "text", "text": text}]
    result = {"content": content, "structured_content": None, "data": text, "is_error": False}
    answer["observation"] = {"tool_name": name, "result": result, "error": None, "metadata": answer["metadata"]}
    return answer


def answer_text(answer: Json) -> str:
    """Return an answer as JSON. Raises `EnvironmentRefused` for what an environment returned that cannot be sent."""
    try:
        return dumps(answer)
    except InvalidJson as error:
        raise EnvironmentRefused(Code.EXECUTION_ERROR, f"protocol: {error}", 500, kind="protocol") from None


def tool_call(spec: EnvironmentSpec, call_id: str, name: str, arguments: object) -> ToolCall:
    """Return the call, validated against the tool's schema. Raises `InvalidToolCall`."""
    tool = find_tool(spec, name)
    if not isinstance(arguments, dict):
        raise InvalidToolCall(ToolError.INVALID, f"the arguments of {name} are not an object")
    try:
        jsonschema.validate(arguments, dict(tool.parameters))
    except jsonschema.ValidationError as error:
        raise InvalidToolCall(ToolError.INVALID, f"{name}: {error.message:.1000}") from None
    except (ArithmeticError, RecursionError):  # an integer too large for jsonschema's division; a schema in itself
        message = f"the arguments of {name} cannot be checked: a number is too large, or the schema has no end"
        raise InvalidToolCall(ToolError.INVALID, message) from None
    return ToolCall(id=call_id, name=name, arguments=arguments)


def find_tool(spec: EnvironmentSpec, name: str) -> Tool:
    """Return the tool with that name. Raises `InvalidToolCall`."""
    for tool in spec.tools:
        if tool.name == name:
            return tool
    known = ", ".join(tool.name for tool in spec.tools) or "none"
    raise InvalidToolCall(ToolError.NOT_FOUND, f"there is no tool {name!r:.100}; there are: {known}")


def unrewarded(observation: Json) -> Json:
    """Return the observation without reward, for an answer that is not a step."""
    return {"observation": observation | {"metadata": {}}, "reward": None, "done": False}
