"""Protocol dialects of environment servers: servers of this library, and stock OpenEnv servers with their own actions
and observations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlhf.env.answers import NAME_LENGTH, TEXT_LENGTH, StockAnswer, validate_answer
from rlhf.env.client.schemas import action_schema, problem_of
from rlhf.env.encoding import action_data, observation_from, spec_from, task_data
from rlhf.env.wire import EXTRAS_VERSION, Json
from rlhf.http.untrusted_text import InvalidJson, read_json
from rlhf.types import EnvironmentSpec, Message, Observation, Task

SHOWN = 4000
"""Maximum characters of a schema, or of an error in an action, that the policy reads."""


class NotAnAction(Exception):
    """The policy's reply is not a valid action of this environment. The message is for the policy."""


class Dialect(Protocol):
    """Translation of this library's types to a server's messages. `resumes`: sessions outlive a connection, and a
    repeated request id returns the same answer."""

    @property
    def spec(self) -> EnvironmentSpec: ...
    @property
    def resumes(self) -> bool: ...
    def reset(self, task: Task, seed: int, request_id: str) -> Json: ...
    def action(self, message: Message, request_id: str) -> Json: ...
    def observation(self, answer: Json) -> Observation: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A server of this library: all fields are transmitted."""

    spec: EnvironmentSpec
    resumes: bool = True

    def reset(self, task: Task, seed: int, request_id: str) -> Json:
        return {"seed": seed, "task": task_data(task), "request_id": request_id}

    def action(self, message: Message, request_id: str) -> Json:
        return action_data(message) | {"metadata": {"request_id": request_id}}

    def observation(self, answer: Json) -> Observation:
        """The observation in an answer. Raises `Undecodable`."""
        return observation_from(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """A stock OpenEnv server. The seed selects its task; text is converted to an action, and an observation to text."""

    spec: EnvironmentSpec
    action_schema: Mapping[str, Any] = field(default_factory=dict)
    resumes: bool = False

    def reset(self, task: Task, seed: int, request_id: str) -> Json:
        return {"seed": seed, "episode_id": request_id}

    def action(self, message: Message, request_id: str) -> Json:
        """The text in the action's only required text field; otherwise the text must be the action, as JSON.

        Raises `NotAnAction`.
        """
        if message.tool_calls:
            return tool_action(message)
        text_field = only_text_field(self.action_schema)
        return {text_field: message.content} if text_field else written_action(message.content, self.action_schema)

    def observation(self, answer: Json) -> Observation:
        """The observation in an answer. Raises `Undecodable`."""
        said = validate_answer(StockAnswer, answer, "observation")
        metadata = said.metadata or {}
        truncated = said.done and metadata.get("truncated") is True and metadata.get("terminated") is not True
        return Observation(
            messages=(Message(role="user", content=text_of_observation(said.observation)),),
            reward=said.reward,
            terminated=said.done and not truncated,
            truncated=truncated,
            info=metadata,
        )


def dialect_of(metadata: Json, schema: Json) -> Dialect:
    """The dialect of a server, from its `/metadata` and `/schema`. Raises `Undecodable`."""
    extras = metadata.get("extras")
    if isinstance(extras, dict) and extras.get("version") == EXTRAS_VERSION:
        return Ours(spec=spec_from(extras.get("spec", {})))
    name, description = str(metadata.get("name"))[:NAME_LENGTH], str(metadata.get("description", ""))[:TEXT_LENGTH]
    return Stock(
        spec=EnvironmentSpec(name=name, description=description),
        action_schema=action_schema(schema.get("action") or {}),
    )


def only_text_field(schema: Mapping[str, Any]) -> str | None:
    """The only required property of an action, if it is a string."""
    required = schema.get("required") or []
    if len(required) != 1:
        return None
    described = (schema.get("properties") or {}).get(required[0])
    is_text = isinstance(described, dict) and described.get("type") == "string" and "enum" not in described
    return required[0] if is_text else None


def written_action(text: str, schema: Mapping[str, Any]) -> Json:
    """Parse an action that the policy wrote as JSON. Raises `NotAnAction`, with the expected schema."""
    try:
        action = read_json(text)
        problem = problem_of(action, text, schema)
    except InvalidJson as error:
        action, problem = None, str(error)
    if problem is not None:
        wanted = json.dumps(schema.get("properties", {}))[:SHOWN]
        raise NotAnAction(f"Not an action: {problem:.{SHOWN}}. Reply with one JSON object of these fields: {wanted}")
    found: Json = action
    return found


def tool_action(message: Message) -> Json:
    """A tool call as an action of OpenEnv's tool environments: one at a time. Raises `NotAnAction`."""
    if len(message.tool_calls) > 1:
        raise NotAnAction("This environment takes one tool call at a time")
    call = message.tool_calls[0]
    return {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}


def text_of_observation(said: Json) -> str:
    """The text for the policy: the observation's only string, or the whole observation as JSON."""
    fields = {name: value for name, value in said.items() if name != "metadata"}
    if "tool_name" in fields and (called := tool_text(fields)) is not None:
        return called
    texts = [value for value in fields.values() if isinstance(value, str)]
    return texts[0] if len(texts) == len(fields) == 1 else json.dumps(fields, ensure_ascii=False)


def tool_text(fields: Json) -> str | None:
    """The result of a tool, or the error of the call."""
    if error := fields.get("error"):
        return str(error.get("message", error)) if isinstance(error, dict) else str(error)
    content = (fields.get("result") or {}).get("content") if isinstance(fields.get("result"), dict) else None
    if not isinstance(content, list):
        return None
    return "\n".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
