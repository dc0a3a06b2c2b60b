"""Perform wire-format actions on a session: the policy's messages, and tool calls."""

from __future__ import annotations

import jsonschema

from rlhf.env.encoding import action_from, answer_data, dumps, joined_text, result_parts, tool_data
from rlhf.env.server.sessions import EnvironmentSession
from rlhf.env.wire import CallTool, Code, EnvironmentRefused, Json, ListTools, parse_action
from rlhf.types import EnvironmentSpec, Message, ToolCall
from rlhf.untrusted_text import InvalidJson

NOT_FOUND = "tool_not_found"
"""Error of a call of an unknown tool, in OpenEnv's words."""


async def act(session: EnvironmentSession, spec: EnvironmentSpec, data: Json) -> Json:
    """Return the `data` of the answer to one action. Raises `EnvironmentRefused`."""
    action = parse_action(data, bool(spec.tools))
    request_id = action.metadata.request_id
    if isinstance(action, ListTools):
        return unrewarded({"tools": [tool_data(tool) for tool in spec.tools]})
    if isinstance(action, CallTool):
        if error := error_of_call(spec, action.tool_name, action.arguments):
            return unrewarded({"tool_name": action.tool_name, "result": None, "error": error})
        return await call_tool(session, action.tool_name, action.arguments, request_id)
    return answer_data(await session.step(action_from(action), request_id))


async def call_tool(session: EnvironmentSession, name: str, arguments: Json, request_id: str | None = None) -> Json:
    """Perform one tool call, which has no error, as a step. Raises `EnvironmentRefused`."""
    call = ToolCall(id=f"call-{session.steps}", name=name, arguments=arguments)
    action = Message(role="assistant", content="", tool_calls=(call,))
    observation = await session.step(action, request_id)
    answer, text = answer_data(observation), joined_text(observation.messages)
    content = result_parts(observation.messages)
    result = {"content": content, "structured_content": None, "data": text, "is_error": False}
    answer["observation"] = {"tool_name": name, "result": result, "error": None, "metadata": answer["metadata"]}
    return answer


def error_of_call(spec: EnvironmentSpec, name: str, arguments: object) -> Json | None:
    """Return an observation that explains to the policy why its call is invalid, which does not count as a step."""
    schemas = {tool.name: tool.parameters for tool in spec.tools}
    if name not in schemas:
        message = f"there is no tool {name!r:.100}; use one of {', '.join(schemas) or 'none'}"
        return {"error_type": NOT_FOUND, "message": message}
    try:
        jsonschema.validate(arguments, dict(schemas[name]) | {"type": "object"})
        return None
    except jsonschema.ValidationError as error:
        message = f"{name}: {error.message:.1000}"
    except (ArithmeticError, RecursionError):  # an integer too large for jsonschema; a schema that contains itself
        message = f"the arguments of {name} cannot be checked: a number is too large, or the schema contains itself"
    return {"error_type": "invalid_args", "message": message}


def answer_text(answer: Json) -> str:
    """Return an answer as JSON. Raises `EnvironmentRefused` for a value of the environment that cannot be sent."""
    try:
        return dumps(answer)
    except InvalidJson as error:
        raise EnvironmentRefused(Code.EXECUTION_ERROR, f"protocol: {error}", 500, kind="protocol") from None


def unrewarded(observation: Json) -> Json:
    return {"observation": observation | {"metadata": {}}, "reward": None, "done": False}
