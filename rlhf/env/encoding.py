"""Conversion between the library's types and the wire format's JSON."""

from __future__ import annotations

import base64
import io
from functools import partial
from typing import Any

import PIL.Image
from pydantic_core import PydanticSerializationError, to_json

from rlhf.chat.shown import read_images, read_shown
from rlhf.env.wire import (
    Action,
    CallData,
    Json,
    MessageData,
    ObservationAnswer,
    SpecAnswer,
    TaskData,
    Undecodable,
    validate_answer,
)
from rlhf.errors import DataError
from rlhf.images import IMAGE_MARK, Image
from rlhf.types import EnvironmentSpec, Message, Observation, Task, Tool, ToolCall
from rlhf.untrusted_text import InvalidJson, escape_json, replace_surrogates

MESSAGE_BYTES = 64 * 2**20
"""Longest message of an environment's process or server, and of a client. An observation holds its text twice."""


def dumps(data: object) -> str:
    """JSON text in one line. Values that JSON lacks are converted: arrays in an `info` to a list or a string, NaN and
    infinity to null, and a lone surrogate to U+FFFD. Raises `InvalidJson` for what cannot be encoded (bytes that are
    not UTF-8, an object that contains itself), and for more than `MESSAGE_BYTES`."""
    encode = partial(to_json, fallback=_plain, inf_nan_mode="null")
    try:
        try:
            text = escape_json(encode(data).decode())
        except PydanticSerializationError:
            text = escape_json(encode(replace_surrogates(data)).decode())
    except (PydanticSerializationError, RecursionError) as error:
        why = "it contains itself" if isinstance(error, RecursionError) else str(error)[:100]
        raise InvalidJson(f"data that JSON cannot represent: {why}") from None
    if len(text) > MESSAGE_BYTES // 4 and (size := len(text.encode())) > MESSAGE_BYTES:
        raise InvalidJson(f"a message of {size:,} bytes exceeds the limit of {MESSAGE_BYTES:,}")
    return text


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def task_data(task: Task) -> Json:
    """Return a task as JSON. Where its messages have images, the columns of the row that hold bytes are left out."""
    data: Json = {"id": task.id, "messages": [message_data(message) for message in task.messages]}
    shows = any(message.images for message in task.messages)
    row = {name: value for name, value in task.row.items() if not (shows and _has_bytes(value))}
    return data | {"answer": task.answer, "row": row}


def _has_bytes(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, bytes) or any(map(_has_bytes, inner))


def task_from(data: TaskData) -> Task:
    """Return a task. Raises `Undecodable` for an image that cannot be shown to a model."""
    messages = tuple(message_from(message) for message in data.messages)
    return Task(id=data.id, messages=messages, answer=data.answer, row=data.row)


def message_data(message: Message) -> Json:
    """Return a message as JSON; empty keys are left out."""
    data: Json = {"role": message.role, "content": message.content}
    if message.images:
        data["images"] = [_base64(image) for image in message.images]
    if message.tool_calls:
        data["tool_calls"] = [call_data(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    return data


def message_from(data: MessageData) -> Message:
    """Return a message. Raises `Undecodable` for an image that cannot be shown to a model."""
    calls = tuple(call_from(call) for call in data.tool_calls)
    try:
        images = read_images(data.images, data.content) if data.images else ()
    except DataError as error:
        raise Undecodable(str(error)) from None
    return Message(
        role=data.role, content=data.content, images=images, tool_calls=calls, tool_call_id=data.tool_call_id
    )


def _base64(image: Image) -> str:
    return base64.b64encode(image.data).decode()


def call_data(call: ToolCall) -> Json:
    return {"id": call.id, "name": call.name, "arguments": dict(call.arguments)}


def call_from(data: CallData) -> ToolCall:
    return ToolCall(id=data.id, name=data.name, arguments=data.arguments)


def action_data(action: Message) -> Json:
    data: Json = {"text": action.content}
    return data | ({"tool_calls": [call_data(call) for call in action.tool_calls]} if action.tool_calls else {})


def action_from(data: Action) -> Message:
    calls = tuple(call_from(call) for call in data.tool_calls)
    return Message(role="assistant", content=data.text, tool_calls=calls)


def tool_data(tool: Tool) -> Json:
    return {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}


def answer_data(observation: Observation, tools: tuple[Tool, ...] = ()) -> Json:
    """Return the `data` of an answer; this library's additions are in `metadata`."""
    text = observation.messages[0].content if len(observation.messages) == 1 else joined_text(observation.messages)
    metadata: Json = {
        "terminated": observation.terminated,
        "truncated": observation.truncated,
        "role": observation.role,
        "info": dict(observation.info),
    }
    content: Json = {
        "messages": [message_data(message) for message in observation.messages],
        "text": text,
        "role": observation.role,
        "metadata": metadata,
    }
    if tools:
        content["tools"] = [tool_data(tool) for tool in tools]
    return {"observation": content, "reward": observation.reward, "done": observation.done, "metadata": metadata}


def part_shown(part: Json) -> str | Image:
    """Return a part of a tool's result: an image, or its text, or its kind and what describes a resource. Raises
    `Undecodable` for an image that cannot be shown to a model."""
    if part.get("type") == "image":
        return image_from(part.get("data"), "an image of a tool's result")
    inner = part.get("resource")
    source = inner if isinstance(inner, dict) else part
    text = source.get("text")
    if part.get("type") != "text":
        named = " ".join(str(source[key]) for key in ("name", "uri", "description") if source.get(key))
        text = f"[{part.get('type')}{' ' * bool(named)}{named}]" + (f"\n{text}" if text else "")
    return str(text)


def image_from(value: object, where: str) -> Image:
    """Return an image that `read_shown` reads. Raises `Undecodable`."""
    try:
        return read_shown(value, where)
    except DataError as error:
        raise Undecodable(str(error)) from None


def result_parts(messages: tuple[Message, ...]) -> list[Json]:
    """Return messages as parts of a tool's result: one text, divided where it has images."""
    if not any(message.images for message in messages):
        return [{"type": "text", "text": joined_text(messages)}]
    parts: list[Json] = []
    for message in messages:
        first, *texts = message.content.split(IMAGE_MARK) if message.images else [message.content]
        parts.append({"type": "text", "text": first})
        for image, text in zip(message.images, texts, strict=True):
            with PIL.Image.open(io.BytesIO(image.data)) as picture:
                kind = picture.get_format_mimetype()
            parts += [{"type": "image", "data": _base64(image), "mimeType": kind}, {"type": "text", "text": text}]
    return [part for part in parts if part.get("text") != ""]


def joined_text(messages: tuple[Message, ...]) -> str:
    return "\n\n".join(message.content for message in messages)


def observation_from(data: Json) -> Observation:
    """Return the observation in an answer of a server of this library. Raises `Undecodable`, also for an image that
    cannot be shown to a model."""
    answer = validate_answer(ObservationAnswer, data, "observation")
    return Observation(
        messages=tuple(message_from(message) for message in answer.observation.messages),
        reward=answer.reward,
        terminated=answer.metadata.terminated,
        truncated=answer.metadata.truncated,
        role=answer.metadata.role,
        info=answer.metadata.info,
    )


def spec_data(spec: EnvironmentSpec) -> Json:
    tools = [tool_data(tool) for tool in spec.tools]
    return {"name": spec.name, "description": spec.description, "tools": tools, "roles": list(spec.roles)}


def spec_from(data: Json) -> EnvironmentSpec:
    """Return the spec that `spec_data` encoded. Raises `Undecodable`."""
    answer = validate_answer(SpecAnswer, data, "spec")
    tools = (Tool(name=tool.name, description=tool.description, parameters=tool.input_schema) for tool in answer.tools)
    return EnvironmentSpec(
        name=answer.name, description=answer.description, tools=tuple(tools), roles=tuple(answer.roles)
    )
