"""Anthropic's Messages, whole or streamed, as Claude Code asks for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, InstanceOf, Tag, WithJsonSchema

from rlhf.chat.shown import Shown, shown
from rlhf.images import Image
from rlhf.rollout.endpoint.sessions import ChatRefused
from rlhf.rollout.endpoint.wires.wire import (
    Answer,
    Arguments,
    Content,
    Text,
    Wanted,
    Wire,
    WireRequest,
    event,
    joined_parts,
    part_image,
)
from rlhf.types import Message, Tool, ToolCall

BILLING = "x-anthropic-billing-header"
"""Begins a block of Claude Code's system prompt that is for Anthropic, and different in every request."""
ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def source_image(source: Any) -> Image:
    return part_image({"type": "image", "source": source}, "the image")


class TextBlock(BaseModel):
    text: str


class ImageBlock(BaseModel):
    """An image, whose `source` has it as base64."""

    source: Annotated[InstanceOf[Image], BeforeValidator(source_image), WithJsonSchema({"type": "object"})]


class ThinkingBlock(BaseModel):
    """Thinking; that of a `redacted_thinking` block says nothing."""

    thinking: str = ""


class ToolUseBlock(BaseModel):
    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: Arguments = Field({})

    def call(self) -> ToolCall:
        return ToolCall(id=self.id, name=self.name, arguments=self.input)


class ToolResultBlock(BaseModel):
    tool_use_id: str = Field(min_length=1)
    content: Content = Shown()
    is_error: bool | None = None

    def message(self) -> Message:
        content = self.content.text or ("error" if self.is_error else "")
        return Message(role="tool", content=content, images=self.content.images, tool_call_id=self.tool_use_id)


KINDS = ("text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result")


def _kind(block: Any) -> str | None:
    kind = str(block.get("type")) if isinstance(block, dict) else ""
    return kind.removeprefix("redacted_") if kind in KINDS else None


ContentBlock = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")],
    Discriminator(
        _kind,
        custom_error_type="unsupported",
        custom_error_message=f"a block must be an object of type {', '.join(KINDS)}",
    ),
]


def as_blocks(given: Any) -> Any:
    return [{"type": "text", "text": given}] if isinstance(given, str) else given


def system_text(given: Any) -> Any:
    """Drop the block of a system prompt that is for Anthropic."""
    if not isinstance(given, list):
        return given
    return [one for one in given if not (isinstance(one, dict) and str(one.get("text", "")).startswith(BILLING))]


ContentBlocks = Annotated[list[ContentBlock], BeforeValidator(as_blocks)]


class MessageGiven(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: ContentBlocks

    def messages(self) -> Iterator[Message]:
        """Yield the message, in the order of its blocks: results of tools are messages of their own."""
        parts = [
            block.text if isinstance(block, TextBlock) else block.source
            for block in self.content
            if isinstance(block, TextBlock | ImageBlock)
        ]
        said = shown(parts)
        if self.role == "assistant":
            thoughts = [block.thinking for block in self.content if isinstance(block, ThinkingBlock)]
            yield Message(
                role="assistant",
                content=said.text,
                images=said.images,
                tool_calls=tuple(block.call() for block in self.content if isinstance(block, ToolUseBlock)),
                reasoning_content="\n".join(thoughts) or None,
            )
            return
        results = [block.message() for block in self.content if isinstance(block, ToolResultBlock)]
        yield from results
        if parts or not results:
            # Few templates take a system message later than at the beginning, where `system` is.
            yield Message(role="user", content=said.text, images=said.images)


class ToolGiven(BaseModel):
    """A tool of the client; one without an `input_schema` is the server's, and left out."""

    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ThreadGiven(BaseModel):
    """Whether a request goes on from an earlier message, whose system prompt and tools stay, or may be gone on from."""

    type: Literal["create", "continue"]
    previous_message_id: str | None = None


class MessagesRequest(WireRequest):
    """The body of `/v1/messages`."""

    messages: list[MessageGiven] = Field(min_length=1)
    system: Annotated[Text, BeforeValidator(system_text)] = ""
    tools: list[ToolGiven] | None = None
    max_tokens: int | None = Field(None, ge=1)
    stop_sequences: list[str] | None = None
    thread: ThreadGiven | None = None

    @property
    def follows(self) -> str | None:
        return self.thread.previous_message_id if self.thread and self.thread.type == "continue" else None

    def wanted(self, before: Sequence[Message] = (), tools: Sequence[Tool] = ()) -> Wanted:
        begun = before or ([Message(role="system", content=self.system)] if self.system else [])
        own = [(one.name, one.description or "", one.input_schema) for one in self.tools or ()]
        return Wanted(
            request=self,
            conversation=joined_parts([*begun, *(one for given in self.messages for one in given.messages())]),
            tools=tuple(tools)
            if self.tools is None
            else tuple(
                Tool(name=name, description=description, parameters=schema)
                for name, description, schema in own
                if schema is not None
            ),
            max_tokens=self.max_tokens,
            stop=tuple(stop for stop in self.stop_sequences or () if stop),
            left_out=frozenset(f"tools.{name}" for name, _, schema in own if schema is None),
            names=("stop_sequences", "output_format"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesAnswer(Answer[MessagesRequest]):
    def whole(self) -> dict[str, Any]:
        return self._head(self._blocks()) | self._end()

    def stream(self) -> Iterator[bytes]:
        for body in self._events():
            yield event(body, body["type"])

    def _events(self) -> Iterator[dict[str, Any]]:
        yield {"type": "message_start", "message": self._head([])}
        for index, block in enumerate(self._blocks()):
            yield {"type": "content_block_start", "index": index, "content_block": block | _EMPTY[block["type"]]}
            for delta in _deltas(block):
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        yield {"type": "message_delta", "delta": self._end(), "usage": self._usage}
        yield {"type": "message_stop"}

    def _blocks(self) -> list[dict[str, Any]]:
        """Return the reply as blocks: thinking, text, calls."""
        thought, text = self.thought_and_text()
        given: list[dict[str, Any]] = []
        if thought:
            given.append({"type": "thinking", "thinking": thought, "signature": self.id})
        if text:
            given.append({"type": "text", "text": text})
        for call in self.replied.message.tool_calls:
            given.append({"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)})
        return given

    def _head(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        named = {"id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content}
        return named | {"stop_reason": None, "stop_sequence": None, "usage": self._usage}

    def _end(self) -> dict[str, Any]:
        """Return why the reply ended."""
        if self.replied.cut:
            said = self.text(self.replied.completion.token_ids)
            stop = min(
                (one for one in self.request.stop_sequences or () if one and one in said), key=said.index, default=None
            )
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        calls = self.replied.message.tool_calls
        return {
            "stop_reason": "max_tokens" if self.was_cut else "tool_use" if calls else "end_turn",
            "stop_sequence": None,
        }

    @property
    def _usage(self) -> dict[str, int]:
        prompt, reply = self.tokens
        cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        return {"input_tokens": prompt, "output_tokens": reply} | cached


_EMPTY: dict[str, dict[str, Any]] = {
    "thinking": {"thinking": "", "signature": ""},
    "text": {"text": ""},
    "tool_use": {"input": {}},
}
"""What a block of each type is at its start."""


def _deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    match block:
        case {"type": "thinking"}:
            yield {"type": "thinking_delta", "thinking": block["thinking"]}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case {"type": "text"}:
            yield {"type": "text_delta", "text": block["text"]}
        case _:
            yield {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}


def _error(refused: ChatRefused) -> dict[str, object]:
    message = refused.message.encode(errors="replace").decode()
    if refused.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # by these words clients know it
    kind = ERRORS.get(refused.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message, "param": refused.param}}


MESSAGES = Wire(
    path="/messages",
    prefix="msg_",
    request=MessagesRequest,
    answer=MessagesAnswer,
    error=_error,
    failed=lambda refused: event(_error(refused), "error"),
    alive=event({"type": "ping"}, "ping"),
)
