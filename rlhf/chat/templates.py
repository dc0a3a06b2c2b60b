"""Messages to tokens by the model's chat template: prompts, and demonstrations as they would be sampled."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jinja2 import TemplateError

from rlhf.chat.image_reader import ImageReader, with_images
from rlhf.errors import ModelError, Raised, catch
from rlhf.images import IMAGE_MARK
from rlhf.types import Message, Prompt, Segment, TokenKind, Tool
from rlhf.untrusted_text import has_surrogate

NONE: Mapping[str, Any] = {}
ReplyTokens = Callable[[str], Sequence[int]]
"""`ReplyEncoder.token_ids`: the tokens that the policy would have sampled, with its end of turn."""
ChatTokenizer = Any
"""A tokenizer of transformers, which is not imported here."""


def prompt_ids(tokenizer: ChatTokenizer, messages: Sequence[Message], arguments: Mapping[str, Any] = NONE) -> list[int]:
    """Return the tokens of the conversation and the header of the assistant's reply. `arguments` are the template's
    arguments other than the messages (`enable_thinking: false`, `tools`). Raises `ModelError` when the template rejects
    the conversation, or a text has a lone surrogate."""
    return list(_applied(tokenizer, messages, return_dict=False, **arguments))


def prompt_text(tokenizer: ChatTokenizer, messages: Sequence[Message], arguments: Mapping[str, Any] = NONE) -> str:
    """Return the same as text. With `add_generation_prompt: False` among the arguments there is no reply header."""
    return str(_applied(tokenizer, messages, tokenize=False, **arguments))


def check_parts(tokenizer: ChatTokenizer, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
    """Check that the chat template reads the tools, tool calls and reasoning of a row. Raises `ModelError`."""
    parts = {
        "tools": (bool(tools), "write tools_column: null to leave them out"),
        "tool_calls": (any(one.tool_calls for one in messages), "write them into the content"),
        "reasoning_content": (any(one.reasoning_content for one in messages), "write it into the content"),
    }
    for part, (is_there, advice) in parts.items():
        if is_there and part not in str(tokenizer.chat_template):
            raise ModelError(
                f"the rows have {part}, but the chat template ignores them; {advice}, or use a model whose template "
                "reads them"
            )


def _applied(tokenizer: ChatTokenizer, messages: Sequence[Message], **arguments: Any) -> Any:
    conversation = [as_chat(message) for message in messages]
    refuse_surrogates(conversation, f"a conversation of {', '.join(message.role for message in messages)}")
    given = {"add_generation_prompt": True, **arguments}
    applied = catch(lambda: tokenizer.apply_chat_template(conversation, **given))
    has_calls = any(message.tool_calls for message in messages)
    if isinstance(applied, Raised) and isinstance(applied.error, TypeError) and has_calls:
        with_text = [_with_text_arguments(one) for one in conversation]  # as DeepSeek's templates take arguments
        applied = catch(lambda: tokenizer.apply_chat_template(with_text, **given))
    if isinstance(applied, Raised):  # a template may raise any error of Python
        error, roles = applied.error, ", ".join(message.role for message in messages)
        why = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        raise ModelError(f"the chat template refuses a conversation of {roles}: {why}") from error
    return applied


def _with_text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        call | {"function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return message | ({"tool_calls": calls} if calls else {})


def refuse_surrogates(given: Any, what: str) -> None:
    """Raise `ModelError` for messages or text with half a character, which no tokenizer reads."""
    if has_surrogate(given):
        shown = str(given).encode(errors="backslashreplace").decode()
        raise ModelError(f"{what} has a lone surrogate, which no tokenizer reads: {shown:.200}")


def as_chat(message: Message) -> dict[str, Any]:
    """Return a message as chat templates expect it; keys that do not apply are left out."""
    calls = [
        {"type": "function"}
        | ({"id": call.id} if call.id else {})
        | {"function": {"name": call.name, "arguments": dict(call.arguments)}}
        for call in message.tool_calls
    ]
    return (
        {"role": message.role, "content": _parts(message) if message.images else message.content}
        | ({"tool_calls": calls} if calls else {})
        | ({"tool_call_id": message.tool_call_id} if message.tool_call_id is not None else {})
        | ({"reasoning_content": message.reasoning_content} if message.reasoning_content is not None else {})
    )


def _parts(message: Message) -> list[dict[str, str]]:
    """Return content with images as chat templates expect it, in parts."""
    texts = message.content.split(IMAGE_MARK)
    parts = [{"type": "text", "text": texts[0]}]
    for text in texts[1:]:
        parts += [{"type": "image"}, {"type": "text", "text": text}]
    return [part for part in parts if part.get("text") != ""]


def arguments_with_tools(arguments: Mapping[str, Any], tools: Sequence[Tool]) -> Mapping[str, Any]:
    """Return the template's arguments, with the tools that the policy may call in the format of templates."""
    functions = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
            | dict(tool.other),
        }
        for tool in tools
    ]
    return {**arguments, "tools": functions} if functions else arguments


def demonstration(
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    response: str,
    arguments: Mapping[str, Any] = NONE,
    *,
    replies: ReplyTokens,
    images: ImageReader | None = None,
) -> Segment:
    """Return the chat prompt as PROMPT tokens, then the response with its end of turn as ACTION tokens."""
    return _answered(with_images(prompt_ids(tokenizer, messages, arguments), messages, images), replies(response))


def comparison(
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    chosen: str,
    rejected: str,
    arguments: Mapping[str, Any] = NONE,
    *,
    replies: ReplyTokens,
    images: ImageReader | None = None,
) -> tuple[Segment, Segment]:
    """Return the demonstrations of two responses to one prompt, which is rendered once."""
    prompt = with_images(prompt_ids(tokenizer, messages, arguments), messages, images)
    return _answered(prompt, replies(chosen)), _answered(prompt, replies(rejected))


def _answered(prompt: Prompt, reply: Sequence[int]) -> Segment:
    asked = prompt.token_ids
    length = len(asked) + len(reply)
    kinds = [TokenKind.PROMPT] * len(asked) + [TokenKind.ACTION] * len(reply)
    return Segment(
        token_ids=np.array([*asked, *reply], np.int32),
        images=prompt.images,
        kinds=np.array(kinds, np.int8),
        behaviour_logprobs=np.zeros(length, np.float32),
        versions=np.full(length, -1, np.int32),
    )
