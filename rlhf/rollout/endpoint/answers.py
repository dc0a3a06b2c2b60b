"""Chat-completion responses in OpenAI's format, whole or streamed; token ids are added in the fields that vLLM uses."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from rlhf.rollout.endpoint.capture import Replied
from rlhf.rollout.endpoint.wire import ChatRequest
from rlhf.types import FinishReason, ToolCall

PIECE = re.compile(r"\s*\S{1,32}|\s+\Z")
"""Size of one streamed chunk: about one word."""
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatResponse:
    """The response to one request of `model`. `text` decodes tokens, special tokens included."""

    request: ChatRequest
    replied: Replied
    model: str
    text: Callable[[NDArray[np.int32]], str]
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(self) -> dict[str, Any]:
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
            yield _event(self._head("chat.completion.chunk", []) | {"usage": self._usage})
        yield DONE

    @property
    def _content(self) -> str | None:
        """The text of the reply; null for tool calls without text."""
        message = self.replied.message
        return message.content if message.content or not message.tool_calls else None

    @property
    def _finish(self) -> str:
        if self.replied.completion.finish_reason is not FinishReason.STOP:
            return "length"
        return "tool_calls" if self.replied.message.tool_calls else "stop"

    @property
    def _usage(self) -> dict[str, int]:
        prompt, reply = len(self.replied.token_ids), len(self.replied.completion.token_ids)
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
        return _event(self._head("chat.completion.chunk", [choice]) | (beside or {}))

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _event(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body, allow_nan=False)}\n\n".encode()  # ASCII: some clients end a line at U+2028
