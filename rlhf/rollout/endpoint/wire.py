"""Chat-completion requests in the format of OpenAI's clients, parsed into the types of this library."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from rlhf.chat.call_json import json_of, serialisable
from rlhf.chat.tool_calls import ToolFormat
from rlhf.rollout.endpoint.marks import AgentRequest
from rlhf.types import Message, Tool, ToolCall

NEVER_SAMPLED = {
    "n": "n is {value}: a request gets one reply; send more requests",
    "top_logprobs": "top_logprobs is {value}: only sampled tokens have log-probs",
    "functions": "functions is deprecated; send tools",
    "audio": "audio is not supported: the policy writes text",
}
"""Fields that cannot be supported and whose absence a client would notice."""
NOTHING: dict[str, tuple[Any, ...]] = {"n": (1,), "top_logprobs": (0,), "functions": ([],)}
"""Values of such fields that request nothing."""
STOP = (
    "stop is {value}: the policy's tokens are trained as sampled, so only the model ends a reply; to cut replies at "
    "such texts set agent.client_stop: cut (rlhf serve policy --client-stop cut)"
)
"""Why stop texts are refused by default."""
NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
"""Field names that are safe to repeat in a header."""


def content_text(content: Any) -> Any:
    """Return a message's text: as given, empty for null, or joined from parts."""
    if not isinstance(content, list):
        return "" if content is None else content
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"only parts of type text are supported, not {kind!r:.40}")
    return "\n".join(part["text"] for part in content)


def texts(given: Any) -> Any:
    return [one for one in (given if isinstance(given, list) else [given]) if one not in (None, "")]


Text = Annotated[str, BeforeValidator(content_text)]
Stops = Annotated[list[str], BeforeValidator(texts)]


class FunctionCall(BaseModel):
    """A tool call's function name, and its arguments: an object, or the JSON text of one."""

    name: str
    arguments: dict[str, Any] = Field({})

    @field_validator("arguments", mode="before")
    @classmethod
    def _an_object(cls, arguments: Any) -> Any:
        read = json_of(arguments) if isinstance(arguments, str) and arguments.strip() else serialisable(arguments or {})
        if not isinstance(read, dict):
            raise ValueError("a call's arguments must be a JSON object, or its text")
        return read


class Call(BaseModel):
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall

    def call(self) -> ToolCall:
        return ToolCall(id=self.id or "", name=self.function.name, arguments=self.function.arguments)


class ChatMessage(BaseModel):
    """One message. `reasoning` is another name of `reasoning_content`; undeclared fields are ignored."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text = ""
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def message(self) -> Message:
        return Message(
            role="system" if self.role == "developer" else self.role,
            content=self.content,
            tool_calls=tuple(call.call() for call in self.tool_calls or ()),
            tool_call_id=self.tool_call_id,
            reasoning_content=self.reasoning_content or self.reasoning or None,
        )

    def ignored(self) -> list[str]:
        return [name for name, value in (self.model_extra or {}).items() if value not in (None, [], {}, "")]


class FunctionOffered(BaseModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolOffered(BaseModel):
    type: Literal["function"] = "function"
    function: FunctionOffered

    def tool(self) -> Tool:
        offered = self.function
        return Tool(name=offered.name, description=offered.description or "", parameters=offered.parameters or {})


class StreamOptions(BaseModel):
    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """The body of `/v1/chat/completions`. Fields that are given but not declared here are `ignored`: they would change
    the sampling distribution, which the server determines, or have no effect here."""

    model_config = ConfigDict(extra="allow")

    messages: list[ChatMessage] = Field(min_length=1)
    model: str = ""
    tools: list[ToolOffered] | None = None
    tool_choice: Any = None
    response_format: Any = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None
    seed: int | None = None
    stop: Stops = Field([])

    def asked(self, *, seeds: bool) -> AgentRequest:
        """Return the request for the policy. With `seeds`, its own seed determines the sampling, if it has one."""
        limits = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None]
        return AgentRequest(
            messages=tuple(message.message() for message in self.messages),
            tools=tuple(offered.tool() for offered in self.tools or ()),
            reads_calls=bool(self.tools) and self.tool_choice != "none",
            max_tokens=min(limits, default=None),
            stop=tuple(self.stop),
            seed=self.seed if seeds else None,
        )

    def missed(self, *, stops: bool) -> tuple[str, str] | None:
        """Return the first unsupported field, and why. `stops`: whether replies are cut at stop texts."""
        if self.stop and not stops:
            return "stop", STOP.format(value=f"{self.stop!r:.40}")
        for name, why in NEVER_SAMPLED.items():
            value = (self.model_extra or {}).get(name)
            if value is not None and value not in NOTHING.get(name, ()):
                return name, why.format(value=f"{value!r:.40}")
        return None

    @property
    def _forced(self) -> list[FunctionOffered] | None:
        """The functions of which one must be called; None where the policy may choose."""
        offered = [one.function for one in self.tools or ()]
        match self.tool_choice:
            case "required":
                return offered
            case {"function": {"name": str(name)}}:
                return [one for one in offered if one.name == name]
            case _:
                return None

    @property
    def _schema(self) -> dict[str, Any] | None:
        """The schema of the reply's text, if it has one."""
        match self.response_format:
            case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
                return schema
            case {"type": "json_object"}:
                return {"type": "object"}
            case _:
                return None

    def unwritable(self, read: ToolFormat) -> tuple[str, str] | None:
        """Return the first field that asks for a structure which cannot be held, and why."""
        form = self.response_format
        if form is not None and self._schema is None and form != {"type": "text"}:
            use = 'give {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema"'
            return "response_format", f"response_format is {form!r:.80}; {use}: ...}}}}"
        if self._forced is not None and not self._forced:
            return "tool_choice", f"tool_choice is {self.tool_choice!r:.80}, and tools has no such function"
        if self._forced and read.around is None:
            return "tool_choice", f"a call in the format {read.name} cannot be forced; use tool_choice auto"
        return None

    def structure(self, read: ToolFormat) -> str:
        """Return what the reply is held to, as `Sampling` has it; "" if it is free."""
        tools = self._forced or [one.function for one in self.tools or () if self.tool_choice != "none"]
        if self._forced is None and self._schema is None:
            return ""
        elements: list[dict[str, Any]] = []
        for one in tools if read.around else ():
            begin, end = (part.replace("NAME", json.dumps(one.name)) for part in read.around or ())
            content = {"type": "json_schema", "json_schema": {"type": "object"} | (one.parameters or {})}
            elements.append({"type": "tag", "begin": begin, "content": content, "end": end})
        if self._forced is None:
            if not elements:
                return json.dumps({"json": json.dumps(self._schema)})
            elements.append({"type": "json_schema", "json_schema": self._schema})
        tag = {"type": "structural_tag", "format": {"type": "or", "elements": elements}}
        return json.dumps({"structural_tag": json.dumps(tag)})

    def ignored(self, *, seeds: bool, structured: bool) -> list[str]:
        """Return the fields that were given and have no effect."""
        others = (self.model_extra or {}).items()
        given = [name for name, value in others if value is not None and name not in NEVER_SAMPLED]
        given += {f"messages.{name}" for message in self.messages for name in message.ignored()}
        forced = self.tool_choice not in (None, "auto", "none") and not structured
        formed = self.response_format is not None and not structured
        named = [name for name in given if NAME.fullmatch(name)] + ["response_format"] * formed
        return sorted(named + ["tool_choice"] * forced + ["seed"] * (self.seed is not None and not seeds))
