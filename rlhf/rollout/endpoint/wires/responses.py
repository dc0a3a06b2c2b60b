"""OpenAI's Responses, whole or streamed, as Codex and openai-agents ask for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from rlhf.chat.shown import Shown
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
)
from rlhf.types import Message, Tool, ToolCall

FREE = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""The parameters of a custom tool, whose input is a text: the policy calls it as a function."""


class MessageItem(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content = Shown()

    def message(self) -> Message:
        role = "system" if self.role == "developer" else self.role
        return Message(role=role, content=self.content.text, images=self.content.images)


class ReasoningItem(BaseModel):
    """Thinking: its text, or the summary of it, which is how this server gives it. Encrypted thinking says nothing."""

    summary: Text = ""
    content: Text = ""

    def message(self) -> Message:
        return Message(role="assistant", content="", reasoning_content=self.content or self.summary or None)


class CallItem(BaseModel):
    """A call of a function, or with `input` of a custom tool."""

    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    namespace: str | None = None
    arguments: Arguments = Field({})
    input: str | None = None

    def message(self) -> Message:
        arguments = self.arguments if self.input is None else {"input": self.input}
        call = ToolCall(id=self.call_id, name=shown_name(self.namespace, self.name), arguments=arguments)
        return Message(role="assistant", content="", tool_calls=(call,))


class OutputItem(BaseModel):
    call_id: str = Field(min_length=1)
    output: Content

    def message(self) -> Message:
        shows = self.output
        return Message(role="tool", content=shows.text, images=shows.images, tool_call_id=self.call_id)


KINDS = {
    "message": "message",
    "reasoning": "reasoning",
    "function_call": "call",
    "custom_tool_call": "call",
    "function_call_output": "output",
    "custom_tool_call_output": "output",
}


def _kind(item: Any) -> str | None:
    return KINDS.get(str(item.get("type", "message"))) if isinstance(item, dict) else None


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CallItem, Tag("call")]
    | Annotated[OutputItem, Tag("output")],
    Discriminator(
        _kind,
        custom_error_type="unsupported",
        custom_error_message=f"an item must be an object of type {', '.join(KINDS)}",
    ),
]


OFFERED = ("function", "custom", "namespace")
"""Types of tools that the client calls."""


def items(given: Any) -> Any:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


class OfferedTool(BaseModel):
    """A function, a custom tool, or a namespace of them; tools of other types are the server's, and left out."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    format: Any = None
    tools: list[OfferedTool] = Field([])

    def each(self, namespace: str | None = None) -> Iterator[tuple[OfferedTool, str | None]]:
        """Yield the functions and custom tools, with the namespace of each."""
        if self.type == "namespace":
            for tool in self.tools:
                yield from tool.each(self.name)
        elif self.type in ("function", "custom") and self.name:
            yield self, namespace

    def tool(self, namespace: str | None) -> Tool:
        description, parameters = self.description or "", self.parameters or {}
        if self.type == "custom":
            parameters = FREE
            match self.format:
                case {"type": "grammar", "definition": str(grammar)}:
                    description += f"\n\nIts input follows this grammar:\n{grammar}"
        return Tool(name=shown_name(namespace, self.name), description=description, parameters=parameters)


def shown_name(namespace: str | None, name: str) -> str:
    """Return the name under which the policy knows a tool."""
    return f"{namespace.rstrip('_')}__{name}" if namespace else name


class ResponsesRequest(WireRequest):
    """The body of `/v1/responses`."""

    REFUSED: ClassVar = {
        "background": "background is {value}: a reply is sent once, to the client that waits for it",
        "conversation": "conversation is not supported; send previous_response_id, or the whole input",
        "prompt": "prompt is not supported: there are no stored prompts; send instructions and input",
    }
    NOTHING: ClassVar = {"background": (False,)}

    input: Annotated[list[Item], BeforeValidator(items)] = Field(min_length=1)
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[OfferedTool] | None = None
    text: dict[str, Any] | None = None
    max_output_tokens: int | None = Field(None, ge=1)

    @property
    def follows(self) -> str | None:
        return self.previous_response_id

    @property
    def names(self) -> dict[str, tuple[OfferedTool, str | None]]:
        """The tools by the names that the policy calls them by, each with its namespace."""
        pairs = [pair for tool in self.tools or () for pair in tool.each()]
        return {shown_name(namespace, tool.name): (tool, namespace) for tool, namespace in pairs}

    def wanted(self, before: Sequence[Message] = (), tools: Sequence[Tool] = ()) -> Wanted:
        text = self.text or {}
        left = {f"tools.{tool.type}" for tool in self.tools or () if tool.type not in OFFERED}
        return Wanted(
            request=self,
            conversation=joined_parts([*before, *(item.message() for item in self.input)]),
            instructions=self.instructions,
            tools=tuple(tool.tool(namespace) for tool, namespace in self.names.values()),
            max_tokens=self.max_output_tokens,
            form=text.get("format"),
            left_out=frozenset(left | {f"text.{name}" for name in text if name != "format"}),
            names=("stop", "text.format"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesAnswer(Answer[ResponsesRequest]):
    def whole(self) -> dict[str, Any]:
        status = "incomplete" if self.was_cut else "completed"
        return self._body(status, [item | {"status": status} for item in self._items()])

    def stream(self) -> Iterator[bytes]:
        for number, (name, body) in enumerate(self._events()):
            yield event({"type": name, "sequence_number": number} | body, name)

    def _events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        begun = {"response": self._body("in_progress", [])}
        yield "response.created", begun
        yield "response.in_progress", begun
        for index, item in enumerate(self._items()):
            place = {"item_id": item["id"], "output_index": index}
            yield "response.output_item.added", {"output_index": index, "item": _opened(item)}
            for name, body in _contents(item):
                yield name, place | body
            done = item | {"status": "incomplete" if self.was_cut else "completed"}
            yield "response.output_item.done", {"output_index": index, "item": done}
        whole = self.whole()
        yield f"response.{whole['status']}", {"response": whole}

    def _items(self) -> list[dict[str, Any]]:
        """Return the reply as items: thinking, text, calls."""
        thought, text = self.thought_and_text()
        calls, known = self.replied.message.tool_calls, self.request.names
        given: list[dict[str, Any]] = []
        if thought:
            given.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}]})
        if text or not calls:
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            given.append({"type": "message", "role": "assistant", "content": [part]})
        for call in calls:
            tool, namespace = known.get(call.name, (None, None))
            named = {"call_id": call.id, "name": tool.name if tool else call.name}
            if namespace:
                named["namespace"] = namespace
            if tool and tool.type == "custom":
                said = call.arguments.get("input")
                wanted = said if isinstance(said, str) else json.dumps(dict(call.arguments), ensure_ascii=False)
                given.append({"type": "custom_tool_call", **named, "input": wanted})
            else:
                arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
                given.append({"type": "function_call", **named, "arguments": arguments})
        return [{"id": f"item_{self.id}_{index}"} | item for index, item in enumerate(given)]

    def _body(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        prompt, reply = self.tokens
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": reply,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + reply,
        }
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": self.request.instructions,
            "metadata": {},
            "model": self.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": self.request.previous_response_id,
            "tool_choice": "auto",
            "tools": [],
            "usage": None if status == "in_progress" else usage,
        }


def _opened(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as it begins, without what it says."""
    empty: dict[str, Any] = {"summary": [], "content": [], "arguments": "", "input": ""}
    return item | {name: empty[name] for name in empty if name in item} | {"status": "in_progress"}


def _contents(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of what an item says, in one delta."""
    match item:
        case {"type": "reasoning", "summary": [part]}:
            at: dict[str, Any] = {"summary_index": 0}
            yield "response.reasoning_summary_part.added", at | {"part": part | {"text": ""}}
            yield "response.reasoning_summary_text.delta", at | {"delta": part["text"]}
            yield "response.reasoning_summary_text.done", at | {"text": part["text"]}
            yield "response.reasoning_summary_part.done", at | {"part": part}
        case {"type": "message", "content": [part]}:
            at = {"content_index": 0}
            yield "response.content_part.added", at | {"part": part | {"text": ""}}
            yield "response.output_text.delta", at | {"delta": part["text"], "logprobs": []}
            yield "response.output_text.done", at | {"text": part["text"], "logprobs": []}
            yield "response.content_part.done", at | {"part": part}
        case {"type": "function_call"}:
            yield "response.function_call_arguments.delta", {"delta": item["arguments"]}
            yield "response.function_call_arguments.done", {"arguments": item["arguments"], "name": item["name"]}
        case _:
            yield "response.custom_tool_call_input.delta", {"delta": item["input"]}
            yield "response.custom_tool_call_input.done", {"input": item["input"]}


def _failed(refused: ChatRefused) -> bytes:
    error = refused.as_json()["error"]
    response = {"id": "resp_failed", "object": "response", "status": "failed", "error": error, "output": []}
    names = ("response.created", "response.failed")
    bodies = [{"type": name, "sequence_number": number, "response": response} for number, name in enumerate(names)]
    return b"".join(event(body, name) for body, name in zip(bodies, names, strict=True))


RESPONSES = Wire(
    path="/responses",
    prefix="resp_",
    request=ResponsesRequest,
    answer=ResponsesAnswer,
    failed=_failed,
)
