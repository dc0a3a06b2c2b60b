"""Conversations in a column: a text, or messages in the shapes of OpenAI and ShareGPT, also stored as JSON text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.data.columns import (
    Row,
    as_text,
    column_of,
    column_text,
    column_value,
    from_json,
    inner_text,
    kind_of,
    short_value,
)
from rlhf.data.config import DatasetConfig
from rlhf.data.expressions import row_text
from rlhf.data.row_images import FROM_COLUMN, read_image
from rlhf.errors import DataError
from rlhf.images import IMAGE_MARK, Image
from rlhf.types import Message, Tool, ToolCall

ROLES = {
    "human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "function": "tool",
    "observation": "tool", **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
}  # fmt: skip
"""The role of a message for each name that data sets give it."""
NOT_READ = ("function_call", "mask", "thinking", "reasoning", "prefix", "images", "videos", "audio")
"""Keys of a message that would change what is trained, but are not supported."""
SEEN = ("video", "videos", "audio", "audios")
"""Columns with video or audio."""
TEXT_ALONE = "models are trained on text and images alone"
IMAGES = ("image", "image_url", "input_image")
"""Types of a part that is an image."""
WEIGHTS = ("weight", "train", "loss", "loss_weight", "loss_mask", "trainable", "training")
"""More of them, which change nothing where they are 1."""
CONVERSATION = re.compile(r"\s*\[\s*\{\s*['\"](role|from|content|value)['\"]\s*:")
"""The beginning of a conversation that is stored as text."""
TURN = re.compile(r"\n\n(Human|Assistant):")
"""The beginning of a turn in a transcript of HH-RLHF (arXiv 2204.05862)."""


def chat_of(row: Row, column: str, key: str, where: str, role: str = "user") -> list[Message]:
    """Return the messages of a column; a text is one message of that role. Raises `DataError`."""
    value = column_of(row, column, key, where)
    if seen := [name for name in SEEN if name != column and row.get(name)]:
        raise DataError(
            f"{where} has {seen[0]!r}, and {TEXT_ALONE}; remove the row, or the column if the text is whole"
        )
    text = as_text(value)
    if text is not None and TURN.match(text):
        return _transcript(text, where, unfinished=role == "user")
    if text is not None and not CONVERSATION.match(text):
        return [Message(role=role, content=_whole(text, where))]
    return _messages_in(value, column, key, where)


def _transcript(text: str, where: str, *, unfinished: bool) -> list[Message]:
    """Return the messages of a transcript. Where it is `unfinished`, it may end with a reply that is only begun."""
    _, *pieces = TURN.split(_whole(text, where))
    turns = [
        Message(role=ROLES[speaker.lower()], content=said.strip())
        for speaker, said in zip(pieces[::2], pieces[1::2], strict=True)
    ]
    return turns[:-1] if unfinished and len(turns) > 1 and not turns[-1].content else turns


def check_answered(chat: Sequence[Message], column: str, where: str) -> None:
    """Raise `DataError` unless the messages of a column end with the assistant's reply."""
    if chat[-1].role != "assistant":
        raise DataError(
            f"{where}: column {column!r} must end with the assistant's reply, but ends with the {chat[-1].role}'s"
        )


def system_of(config: DatasetConfig, row: Row, where: str) -> str:
    """Return the system message of the recipe or of the row's column; empty without one. Raises `DataError`."""
    if config.system_template:
        return row_text(config.system_template, row, "system_template", where)
    column = config.system_column
    if column is None or column_value(row, column) in (None, ""):
        return config.system_prompt or ""
    if config.system_prompt:
        raise DataError(
            f"{where} has a system message in column {column!r}, but the recipe has a system_prompt; remove one of "
            "them, or write system_column: null"
        )
    return column_text(row, column, "system_column", where)


def _messages_in(value: Any, column: str, key: str, where: str) -> list[Message]:
    """Return the messages of a list, or of a list stored as text. Raises `DataError`."""
    given = from_json(value)
    if isinstance(given, str):
        raise DataError(
            f"{where}: column {column!r} looks like a conversation but is neither JSON nor a Python list; it reads "
            f"{short_value(value)}"
        )
    if not isinstance(given, Sequence) or not given or not all(isinstance(one, Mapping) for one in given):
        inner = inner_text(given)
        if isinstance(given, Mapping):
            inner = next((name for name, one in given.items() if isinstance(one, list)), inner)
        hint = f"; write {key}: {column}.{inner}" if inner else ""
        raise DataError(
            f"{where}: column {column!r} must be text or a list of messages with role and content, but holds "
            f"{kind_of(given)} and reads {short_value(given)}{hint}"
        )
    return [_message(one, f"{where}: message {number} of column {column!r}") for number, one in enumerate(given, 1)]


def _message(given: Mapping[str, Any], where: str) -> Message:
    said = given.get("role", given.get("from"))
    role = ROLES.get(said.strip().lower()) if isinstance(said, str) else None
    if role is None:
        raise DataError(f"{where} has the role {said!r}; the roles are {', '.join(ROLES)}")
    if unread := [
        *(key for key in NOT_READ if given.get(key)),
        *(key for key in WEIGHTS if given.get(key) not in (None, "", 1)),
    ]:
        renamed = ", or name it reasoning_content" if unread[0] in ("thinking", "reasoning") else ""
        raise DataError(f"{where} has {unread[0]!r}, which is not supported; remove it{renamed}")
    calls = tuple(_tool_call(one, where) for one in from_json(given.get("tool_calls")) or ())
    reasoning = given.get("reasoning_content")
    call_id = given.get("tool_call_id")
    content, images = _content(given.get("content", given.get("value")), where, may_lack=bool(calls))
    if images and role == "assistant":
        raise DataError(f"{where} is the assistant's and has an image, but the policy writes text; remove the row")
    return Message(
        role=role,
        content=content,
        images=images,
        tool_calls=calls,
        tool_call_id=None if call_id is None else str(call_id),
        reasoning_content=None if reasoning is None else _content(reasoning, where)[0],
    )


def _content(given: Any, where: str, *, may_lack: bool = False) -> tuple[str, tuple[Image, ...]]:
    """Return the text of a message, also of one in parts, with a mark for each of its images."""
    if given is None and may_lack:
        return "", ()
    texts, images = list[str](), list[Image]()
    for part in given if isinstance(given, list) else [given]:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if kind == "text" else part
        if kind in IMAGES:
            own = any(part.get(key) is not None for key in ("image", "image_url", "bytes", "url", "path"))
            images.append(read_image(part, None, f"{where}, image {len(images) + 1}") if own else FROM_COLUMN)
            texts.append(IMAGE_MARK)
        elif isinstance(kind, str) and kind.startswith(("video", "audio")):
            raise DataError(f"{where} has a part of type {kind!r}, and {TEXT_ALONE}; remove the row, or the part")
        elif isinstance(text, str):
            texts.append(text)
        else:
            raise DataError(f"{where} must have text as content, but reads {short_value(given)}")
    return _whole("".join(texts), where), tuple(images)


def _whole(text: str, where: str) -> str:
    """Return a text that can be encoded. Raises `DataError`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{where} has a lone surrogate (\\ud800 to \\udfff); correct it") from None
    return text


def _tool_call(given: Any, where: str) -> ToolCall:
    call = given.get("function", given) if isinstance(given, Mapping) else {}
    name, arguments = call.get("name"), from_json(call.get("arguments"))
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise DataError(
            f"{where} has a tool call without a name or an object of arguments; it reads {short_value(given)}"
        )
    return ToolCall(id=str(given.get("id") or ""), name=name, arguments=arguments)


def tools_of(config: DatasetConfig, row: Row, where: str) -> tuple[Tool, ...]:
    """Return the tools of a row, for the chat template; none without such a column. Raises `DataError`."""
    given = from_json(column_value(row, config.tools_column)) if config.tools_column else None
    if given in (None, "", [], ()):
        return ()
    tools = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(_tool(from_json(one), f"{where}: column {config.tools_column!r}") for one in tools)


def _tool(given: Any, where: str) -> Tool:
    function = given.get("function", given) if isinstance(given, Mapping) else {}
    name, parameters = function.get("name"), function.get("parameters") or {}
    if not isinstance(name, str) or not isinstance(parameters, Mapping):
        raise DataError(
            f"{where} holds tools as functions with name, description and parameters; it reads {short_value(given)}; "
            "write tools_column: null if the chat template need not show them"
        )
    other = {key: value for key, value in function.items() if key not in ("name", "description", "parameters")}
    return Tool(name=name, description=function.get("description") or "", parameters=parameters, other=other)
