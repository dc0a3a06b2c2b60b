"""Requests that make no sense: to HTTP itself, as JSON, and in each server's own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HOST = b"Host: localhost\r\n"
KIND = b"Content-Type: application/json\r\n"
WEBSOCKET = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)
PATHS: Mapping[str, tuple[str, ...]] = {
    "environment": ("/reset", "/step", "/mcp"),
    "reward": ("/get_reward", "/", "/classify", "/pooling", "/score"),
    "sandbox": ("/run_code",),
    "policy": ("/v1/chat/completions",),
}
"""Where each server takes a body."""
GO = {"role": "user", "content": "go"}
ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}
HONEST: Mapping[str, tuple[tuple[str, Any], ...]] = {
    "environment": (
        ("/reset", {"seed": 1, "task": {"id": "t", "messages": [GO]}}),
        ("/step", {"action": {"text": "5"}}),
        ("/step", {"action": {"text": "", "tool_calls": [ADD], "metadata": {"request_id": "r"}}}),
        ("/step", {"action": {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1, "b": 2}}}),
        ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": ADD}),
        ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}),
    ),
    "reward": (
        ("/get_reward", {"query": ["1+1=2"], "prompts": ["1+1="], "labels": ["2"]}),
        ("/", {"prompt": "1+1=", "response": "2", "label": "2"}),
        ("/classify", {"model": "m", "input": ["2"], "label": "2"}),
        ("/pooling", {"input": "2", "label": "2"}),
        ("/score", {"text_1": "1+1=", "text_2": ["2", "3"], "label": "2"}),
    ),
    "sandbox": (
        ("/run_code", {"code": "print(1)", "language": "python", "stdin": "", "run_timeout": 5, "fetch_files": []}),
    ),
    "policy": (
        ("/v1/chat/completions", {"messages": [GO], "max_tokens": 4, "seed": 1}),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    GO,
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
                    },
                    {"role": "tool", "content": "3", "tool_call_id": "c"},
                ],
                "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
            },
        ),
    ),
}
"""Requests that each server answers with 200."""


LONG = b"a" * 400_000
GET, POST = b"GET /health HTTP/1.1\r\n", b"POST /reset HTTP/1.1\r\n" + HOST + KIND
CHUNKS = POST + b"Transfer-Encoding: chunked\r\n\r\n"
HTTP: Mapping[str, bytes] = {
    "noise": bytes(range(256)) * 8,
    "a TLS hello": bytes.fromhex("160301020001000001fc0303") + bytes(400),
    "no version": b"GET /health\r\n\r\n",
    "a long target": b"GET /" + LONG + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "no Host": GET + b"\r\n",
    "two Hosts": GET + HOST * 2 + b"\r\n",
    "a Host of bytes": GET + b"Host: \xff\xfe\r\n\r\n",
    "200,000 headers": GET + HOST + b"a: b\r\n" * 200_000 + b"\r\n",
    "a long header": GET + HOST + b"a: " + LONG + b"\r\n\r\n",
    "headers without an end": GET + HOST + b"a: b\r\n" * 20_000,
    "a negative length": POST + b"Content-Length: -1\r\n\r\n",
    "a length of 5,000 digits": POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "a length beyond the limit": POST + b"Content-Length: 99999999999\r\n\r\n{",
    "a body without an end": POST + b'Content-Length: 999\r\n\r\n{"a',
    "a chunk of letters": CHUNKS + b"zz\r\n{}\r\n0\r\n\r\n",
    "a content type of bytes": b"POST /reset HTTP/1.1\r\n" + HOST
    + b"Content-Type: \xff/\xfe\r\nContent-Length: 2\r\n\r\n{}",
    "a WebSocket at an unknown path": b"GET /nowhere HTTP/1.1\r\n" + HOST + WEBSOCKET + b"\r\n",
    "a WebSocket by POST": b"POST /ws HTTP/1.1\r\n" + HOST + WEBSOCKET + b"\r\n",
    "a WebSocket of another page": b"GET /ws HTTP/1.1\r\nOrigin: http://a.example\r\n" + HOST + WEBSOCKET + b"\r\n",
}  # fmt: skip
"""Bytes that are no HTTP request, or one that no server of ours takes."""
JSON: Mapping[str, bytes] = {
    "nothing": b"", "a brace": b"{", "a word": b"nul", "two values": b"{} {}", "bytes": b"\xff\xfe{}",
    "half a character": b'{"\xc3": 1}', "UTF-16": "{}".encode("utf-16"), "a byte order mark": b"\xef\xbb\xbf{}",
    "NaN": b'{"a": NaN}', "Infinity": b'{"a": -Infinity}', "a control character": b'{"a": "\x01"}',
    "an integer of 5,000 digits": b'{"seed": ' + b"1" * 5000 + b"}", "deep lists": b"[" * 100_000,
    "deep lists that end": b"[" * 10_000 + b"]" * 10_000, "deep objects": b'{"a":' * 50_000,
    "gzip": b"\x1f\x8b\x08\0",
    "a list": b"[]", "a number": b"7", "a text": b'"text"', "null": b"null", "true": b"true",
    "a list of objects": b"[{}, {}]",
}  # fmt: skip
"""Bodies that are not JSON, or that no server takes."""
SURROGATE = "\ud800"
DEEP_CALL = {"function": {"name": "a", "arguments": "[" * 9000}}
OF_SERVERS: Mapping[str, tuple[tuple[str, Any], ...]] = {
    "environment": (
        ("/step", {"action": {"type": "call_tool", "tool_name": "add", "arguments": SURROGATE}}),
        ("/step", {"action": {"type": ["call_tool"], "tool_name": "add"}}),
        ("/step", {"action": {"text": {"a": 1}}}),
        ("/step", {"action": {"text": "a", "metadata": {"request_id": []}}}),
        ("/step", {"action": {"text": "a", "tool_calls": [{"name": None}]}}),
        ("/step", {"action": []}),
        ("/reset", {"task": {"id": "t", "row": []}}),
        ("/reset", {"seed": 2**64}),
        ("/reset", {"seed": 1.5}),
        ("/reset", {"episode_id": "e" * 300}),
        ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sing"}}),
    ),
    "reward": (
        ("/get_reward", {"query": [["a"]]}),
        ("/get_reward", {"query": ["a"], "prompts": ["b", "c"]}),
        ("/get_reward", {"query": ["a"], "labels": [{}]}),
        ("/get_reward", {"query": ["a"] * 5000}),
        ("/", {"response": 1}),
        ("/classify", {"input": [[1], "a"]}),
        ("/pooling", {"input": [2**40]}),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}),
    ),
    "sandbox": (
        ("/run_code", {"code": 1}),
        ("/run_code", {"code": "1", "language": "bash"}),
        ("/run_code", {"code": "1", "stdin": {}}),
        ("/run_code", {"code": "1", "files": {"a": "not base64!"}}),
        ("/run_code", {"code": "1", "fetch_files": "a"}),
        ("/run_code", {"code": "1", "run_timeout": -1}),
        ("/run_code", {"code": "1", "memory_limit_MB": 1.5}),
    ),
    "policy": (
        ("/v1/chat/completions", {"messages": [{"role": "boss", "content": "a"}]}),
        ("/v1/chat/completions", {"messages": [GO], "n": 2}),
        ("/v1/chat/completions", {"messages": [GO], "max_tokens": 0}),
        ("/v1/chat/completions", {"messages": [GO], "tools": [{"type": "function", "function": {"name": 1}}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [DEEP_CALL]}]}),
        ("/sessions/nobody/v1/chat/completions", {"messages": [GO]}),
        ("/sessions/nobody/end", {"reward": 1.0}),
    ),
}  # fmt: skip
"""Bodies that are JSON, and no request of the server."""
