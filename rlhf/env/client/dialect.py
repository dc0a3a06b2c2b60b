"""Protocol dialects of environment servers: this library's, and stock OpenEnv's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import PIL.Image

from rlhf.chat.shown import shown
from rlhf.env.encoding import action_data, image_from, observation_from, part_shown, spec_from, task_data
from rlhf.env.wire import EXTRAS_VERSION, NAME_LENGTH, TEXT_LENGTH, Json, StockAnswer, Undecodable, validate_answer
from rlhf.errors import Raised, catch
from rlhf.images import Image
from rlhf.types import EnvironmentSpec, Message, Observation, Task
from rlhf.untrusted_text import InvalidJson, read_json

SCREENSHOT = "screenshot"
"""The field of an observation that OpenEnv's browsers give as pixels `[height][width][channel]`, others encoded."""
ENCODED = ("data:image/", "iVBORw0KGgo", "/9j/")
"""How base64 of a PNG and of a JPEG begins, and a URL with one."""
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
        content = shown(shown_by(valid.observation))
        truncated = valid.done and metadata.get("truncated") is True and metadata.get("terminated") is not True
        return Observation(
            messages=(Message(role="user", content=content.text, images=content.images),),
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


def shown_by(observation: Json) -> list[str | Image]:
    """Return what the policy gets: a tool's result or error, or the observation's `screenshot`, if it has one, and its
    only string, or all of it as JSON. Raises `Undecodable` for an image that cannot be shown to a model."""
    fields = {name: value for name, value in observation.items() if name != "metadata"}
    if "tool_name" in fields:
        if error := fields.get("error"):
            return [str(error.get("message", error)) if isinstance(error, dict) else str(error)]
        result = fields.get("result")
        if isinstance(result, dict) and isinstance(content := result.get("content"), list):
            return [part_shown(part) for part in content if isinstance(part, dict)]
    picture = fields.get(SCREENSHOT)
    images: list[str | Image] = []
    if isinstance(picture, list) or (isinstance(picture, str) and picture.startswith(ENCODED)):
        images = [image_from(_pixels(picture), f"the observation's {SCREENSHOT}")]
        del fields[SCREENSHOT]
    texts = [value for value in fields.values() if isinstance(value, str)]
    return [*images, texts[0] if len(texts) == len(fields) == 1 else json.dumps(fields, ensure_ascii=False)]


def _pixels(picture: Any) -> Any:
    """Return rows of pixels as a picture, and base64 as it is. Raises `Undecodable`."""
    if not isinstance(picture, list):
        return picture
    made = catch(lambda: PIL.Image.fromarray(np.array(picture, np.uint8)))
    if isinstance(made, Raised):
        raise Undecodable(f"the observation's {SCREENSHOT} is no image: {made.error!s:.200}")
    return made
