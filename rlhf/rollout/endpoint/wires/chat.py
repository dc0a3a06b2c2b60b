"""OpenAI's Chat Completions and Completions, whole or streamed; token ids are added in the fields that vLLM uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rlhf.chat.shown import Shown
from rlhf.rollout.endpoint.wires.wire import Answer, Arguments, Content, Wanted, Wire, WireRequest, event
from rlhf.types import Message, Tool, ToolCall

PIECE = re.compile(r"\s*\S{1,32}|\s+\Z")
"""Size of one streamed chunk: about one word."""
DONE = b"data: [DONE]\n\n"
ONE = "n is {value}: a request gets one reply; send more requests"


def texts(given: Any) -> Any:
    return [one for one in (given if isinstance(given, list) else [given]) if one not in (None, "")]


Stops = Annotated[list[str], BeforeValidator(texts)]


class FunctionCall(BaseModel):
    name: str
    arguments: Arguments = Field({})


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
    content: Content = Shown()
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def message(self) -> Message:
        return Message(
            role="system" if self.role == "developer" else self.role,
            content=self.content.text,
            images=self.content.images,
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


class ChoiceRequest(WireRequest):
    """What a request of OpenAI's that is answered by choices may have."""

    max_tokens: int | None = Field(None, ge=1)
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    stop: Stops = Field([])


class ChatRequest(ChoiceRequest):
    """The body of `/v1/chat/completions`."""

    REFUSED: ClassVar = {
        "n": ONE,
        "top_logprobs": "top_logprobs is {value}: only sampled tokens have log-probs",
        "functions": "functions is deprecated; send tools",
        "audio": "audio is not supported: the policy writes text",
    }
    NOTHING: ClassVar = {"n": (1,), "top_logprobs": (0,), "functions": ([],)}

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ToolOffered] | None = None
    response_format: Any = None
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None

    def wanted(self, before: Sequence[Message] = (), tools: Sequence[Tool] = ()) -> Wanted:
        limits = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None]
        return Wanted(
            request=self,
            conversation=tuple(message.message() for message in self.messages),
            tools=tuple(offered.tool() for offered in self.tools or ()),
            max_tokens=min(limits, default=None),
            stop=tuple(self.stop),
            form=self.response_format,
            left_out=frozenset(f"messages.{name}" for message in self.messages for name in message.ignored()),
        )


def one_prompt(given: Any) -> Any:
    if isinstance(given, str) or (isinstance(given, list) and all(type(one) is int and one >= 0 for one in given)):
        return given
    raise ValueError("give one text, or one list of token ids; for more replies send more requests")


class CompletionsRequest(ChoiceRequest):
    """The body of `/v1/completions`. The prompt is a text, encoded with special tokens, or the token ids."""

    REFUSED: ClassVar = {
        "n": ONE,
        "best_of": "best_of is {value}: a request gets one reply; send more requests",
        "logprobs": "logprobs is {value}: log-probs are in the answers of /v1/chat/completions alone",
        "echo": "echo is {value}: only sampled tokens are returned; put the prompt before them",
        "suffix": "suffix is {value}: the policy continues a text; it does not fill one in",
    }
    NOTHING: ClassVar = {"n": (1,), "best_of": (1,), "echo": (False,), "suffix": ("",)}

    prompt: Annotated[str | list[int], BeforeValidator(one_prompt), Field(min_length=1)]
    max_tokens: int | None = Field(16, ge=1)
    logprobs: ClassVar[None] = None  # no field, so that REFUSED names it; the answer has none

    def wanted(self, before: Sequence[Message] = (), tools: Sequence[Tool] = ()) -> Wanted:
        prompt = self.prompt if isinstance(self.prompt, str) else tuple(self.prompt)
        stop = tuple(self.stop)
        return Wanted(request=self, conversation=(), max_tokens=self.max_tokens, stop=stop, prompt=prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer(Answer[Any]):
    """The answer, with log-probs of all sampled tokens, under the distribution they were sampled from."""

    CHUNK: ClassVar = "chat.completion.chunk"

    def whole(self) -> dict[str, Any]:
        message = self.replied.message
        content: dict[str, Any] = {"role": "assistant", "content": self._content, "refusal": None}
        if message.tool_calls:
            content["tool_calls"] = [_call(call) for call in message.tool_calls]
        choice = {"index": 0, "message": content, "finish_reason": self._finish, "logprobs": self._logprobs}
        return self._head("chat.completion", [choice | self._sampled_ids]) | {"usage": self._usage} | self._prompt_ids

    def stream(self) -> Iterator[bytes]:
        """Iterate over the response as events: the role, chunks of text, tool calls, finish reason, `[DONE]`."""
        yield self._chunk({"role": "assistant", "content": ""}, beside=self._prompt_ids)
        for piece in PIECE.findall(self._content or ""):
            yield self._chunk({"content": piece})
        for index, call in enumerate(self.replied.message.tool_calls):
            yield self._chunk({"tool_calls": [{"index": index} | _call(call)]})
        yield self._chunk({}, {"finish_reason": self._finish, "logprobs": self._logprobs} | self._sampled_ids)
        if self.request.stream_options and self.request.stream_options.include_usage:
            yield event(self._head(self.CHUNK, []) | {"usage": self._usage})
        yield DONE

    @property
    def _content(self) -> str | None:
        """The text of the reply; null for tool calls without text."""
        message = self.replied.message
        return message.content if message.content or not message.tool_calls else None

    @property
    def _finish(self) -> str:
        if self.was_cut:
            return "length"
        return "tool_calls" if self.replied.message.tool_calls else "stop"

    @property
    def _usage(self) -> dict[str, int]:
        prompt, reply = self.tokens
        return {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}

    @property
    def _logprobs(self) -> dict[str, Any] | None:
        """Log-probs of all sampled tokens, under the distribution they were sampled from."""
        if not self.request.logprobs:
            return None
        completion = self.replied.completion
        texts = [self.text(np.array([token])) for token in completion.token_ids]
        content = [
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
            for text, logprob in zip(texts, completion.behaviour_logprobs.tolist(), strict=True)
        ]
        return {"content": content, "refusal": None}

    @property
    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": self.replied.token_ids.tolist()} if self.request.return_token_ids else {}

    @property
    def _sampled_ids(self) -> dict[str, Any]:
        ids = self.replied.completion.token_ids.tolist()
        return {"token_ids": ids} if self.request.return_token_ids else {}

    def _chunk(
        self, delta: dict[str, Any], end: dict[str, Any] | None = None, beside: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None} | (end or {})
        return event(self._head(self.CHUNK, [choice]) | (beside or {}))

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionsAnswer(ChatAnswer):
    CHUNK: ClassVar = "text_completion"

    def whole(self) -> dict[str, Any]:
        choice = {"index": 0, "text": self._content, "finish_reason": self._finish, "logprobs": None}
        return self._head(self.CHUNK, [choice | self._sampled_ids | self._prompt_ids]) | {"usage": self._usage}

    def _chunk(
        self, delta: dict[str, Any], end: dict[str, Any] | None = None, beside: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": 0, "text": delta.get("content", ""), "finish_reason": None, "logprobs": None}
        return event(self._head(self.CHUNK, [choice | (end or {}) | (beside or {})]))


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


CHAT = Wire(
    path="/chat/completions",
    prefix="chatcmpl-",
    request=ChatRequest,
    answer=ChatAnswer,
)
COMPLETIONS = Wire(
    path="/completions",
    prefix="cmpl-",
    request=CompletionsRequest,
    answer=CompletionsAnswer,
)
