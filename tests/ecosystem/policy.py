"""A policy behind an OpenAI-compatible endpoint that says what a function says, as a stream."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.servers import Asked, Reply, response, scripted

Says = Callable[[str], str]
"""From the last message that the policy is shown to what it replies."""


@contextlib.asynccontextmanager
async def policy(says: Says) -> AsyncIterator[str]:
    """The base URL of the endpoint, for as long as the block."""

    def answer(asked: Asked) -> Reply:
        if (asked.method, asked.path) != ("POST", "/v1/chat/completions"):
            return 404, {"error": {"message": f"no {asked.method} {asked.path} here"}}
        assert asked.json["stream"]
        return response(200, stream(says(asked.json["messages"][-1]["content"])), content_type="text/event-stream")

    async with scripted(answer) as server:
        yield f"{server.url}/v1"


def stream(text: str) -> bytes:
    """A completion as server-sent events: the text, its end, what it cost."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunks = [
        chunk(choices=[choice({"role": "assistant", "content": text}, None)]),
        chunk(choices=[choice({}, "stop")]),
        chunk(choices=[], usage=usage),
    ]
    return "".join(f"data: {line}\n\n" for line in [*map(json.dumps, chunks), "[DONE]"]).encode()


def chunk(**fields: Any) -> dict[str, Any]:
    return {"id": "completion", "object": "chat.completion.chunk", "created": 0, "model": "policy", **fields}


def choice(delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}
