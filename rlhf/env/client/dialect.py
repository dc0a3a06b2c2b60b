"""Protocol dialects of environment servers: this library's, and stock OpenEnv's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf.env.encoding import action_data, observation_from, part_text, spec_from, task_data
from rlhf.env.wire import EXTRAS_VERSION, NAME_LENGTH, TEXT_LENGTH, Json, StockAnswer, Undecodable, validate_answer
from rlhf.types import EnvironmentSpec, Message, Observation, Task
from rlhf.untrusted_text import InvalidJson, read_json

SHOWN = 4000
"""Maximum characters of a schema, or of an error in an action, that the policy reads."""


class InvalidAction(Exception):
    """The policy's reply is not a valid action of this environment. The message is for the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A server of this library: sessions outlive a connection, and a repeated request id gets the same answer."""

    spec: EnvironmentSpec
    resumes: bool = True

    def reset(self, task: Task, seed: int, request_id: str) -> Json:
        return {"seed": seed, "task": task_data(task), "request_id": request_id}

    def action(self, message: Message, request_id: str) -> Json:
        return action_data(message) | {"metadata": {"request_id": request_id}}

    def observation(self, answer: Json) -> Observation:
        return observation_from(answer)

    def refused(self, problem: str) -> str | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """A stock OpenEnv server. The seed selects its task; text is converted to an action, and an observation to text."""

    spec: EnvironmentSpec
    action_schema: Mapping[str, Any] = field(default_factory=dict)
    resumes: bool = False

    def reset(self, task: Task, seed: int, request_id: str) -> Json:
        return {"seed": seed, "episode_id": request_id}

    def action(self, message: Message, request_id: str) -> Json:
        """Return a tool call as an action of OpenEnv's tool environments; or the text in the action's only required
        text field; otherwise the text must be the action, as JSON. The server validates it. Raises `InvalidAction`."""
        if len(message.tool_calls) > 1:
            raise InvalidAction("This environment takes one tool call at a time")
        for call in message.tool_calls:
            return {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}
        if field := only_text_field(self.action_schema):
            return {field: message.content}
        try:
            action = read_json(message.content)
        except InvalidJson as error:
            raise InvalidAction(self.refused(str(error))) from None
        if not isinstance(action, dict):
            raise InvalidAction(self.refused("expected an object"))
        return action

    def refused(self, problem: str) -> str:
        wanted = json.dumps(self.action_schema.get("properties", {}))[:SHOWN]
        return f"Invalid action: {problem:.{SHOWN}}. Reply with one JSON object with these fields: {wanted}"

    def observation(self, answer: Json) -> Observation:
        """Return the observation in an answer. Raises `Undecodable`."""
        valid = validate_answer(StockAnswer, answer, "observation")
        metadata = valid.metadata or {}
        truncated = valid.done and metadata.get("truncated") is True and metadata.get("terminated") is not True
        return Observation(
            messages=(Message(role="user", content=text_of_observation(valid.observation)),),
            reward=valid.reward,
            terminated=valid.done and not truncated,
            truncated=truncated,
            info=metadata,
        )


Dialect = Ours | Stock
"""Translation of types to messages. `refused` explains a refused action to the policy, if that is at fault."""


def dialect_of(metadata: Json, schema: Json) -> Dialect:
    """Return the dialect of a server, from its `/metadata` and `/schema`. Raises `Undecodable`."""
    extras = metadata.get("extras")
    if isinstance(extras, dict) and extras.get("version") == EXTRAS_VERSION:
        return Ours(spec=spec_from(extras.get("spec", {})))
    name, description = str(metadata.get("name"))[:NAME_LENGTH], str(metadata.get("description", ""))[:TEXT_LENGTH]
    action = schema.get("action") or {}
    if not isinstance(action, dict):
        raise Undecodable("the schema of actions is not an object")
    return Stock(spec=EnvironmentSpec(name=name, description=description), action_schema=action)


def only_text_field(schema: Mapping[str, Any]) -> str | None:
    """Return the only required property of an action, if it is a string."""
    match schema:
        case {"required": [str(name)], "properties": dict(properties)}:
            described = properties.get(name)
            is_text = isinstance(described, dict) and described.get("type") == "string" and "enum" not in described
            return name if is_text else None
    return None


def text_of_observation(observation: Json) -> str:
    """Return the text for the policy: a tool's result or error, the observation's only string, or all of it as JSON."""
    fields = {name: value for name, value in observation.items() if name != "metadata"}
    if "tool_name" in fields:
        if error := fields.get("error"):
            return str(error.get("message", error)) if isinstance(error, dict) else str(error)
        result = fields.get("result")
        if isinstance(result, dict) and isinstance(content := result.get("content"), list):
            return "\n".join(part_text(part) for part in content if isinstance(part, dict))
    texts = [value for value in fields.values() if isinstance(value, str)]
    return texts[0] if len(texts) == len(fields) == 1 else json.dumps(fields, ensure_ascii=False)
