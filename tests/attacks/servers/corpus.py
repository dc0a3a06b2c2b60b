"""Requests that make no sense, as bytes: of HTTP itself, of JSON, and of each server's own words."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
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


def posted(path: str, body: bytes, headers: bytes = KIND, token: str | None = None) -> bytes:
    head = f"POST {path} HTTP/1.1\r\n".encode() + HOST + headers + bearer(token)
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def bearer(token: str | None) -> bytes:
    return f"Authorization: Bearer {token}\r\n".encode() if token else b""


def chunked(*chunks: bytes) -> bytes:
    return HOST + KIND + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks)


def of_http(path: str) -> Iterator[tuple[str, bytes]]:
    """What is no request, or not the whole of one, or more of it than anybody needs."""
    post = f"POST {path} HTTP/1.1\r\n".encode()
    long = b"a" * 40_000
    yield "nothing but noise", bytes(range(256)) * 8
    yield "a TLS hello", bytes.fromhex("160301020001000001fc0303") + bytes(400)
    yield "HTTP/2's preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield "no version", b"GET /health\r\n\r\n"
    yield "version 9", b"GET /health HTTP/9.9\r\n" + HOST + b"\r\n"
    yield "a method that is none", b"G<T /health HTTP/1.1\r\n" + HOST + b"\r\n"
    yield "a method in small letters", b"get /health HTTP/1.1\r\n" + HOST + b"\r\n"
    yield "a target that is no path", b"GET health HTTP/1.1\r\n" + HOST + b"\r\n"
    yield "a target of bytes", b"GET /\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n"
    yield "a target with a space", b"GET /hea lth HTTP/1.1\r\n" + HOST + b"\r\n"
    yield "a target of another scheme", b"GET ftp://a:b:c/ HTTP/1.1\r\n" + HOST + b"\r\n"
    yield "a long target", b"GET /" + long + b" HTTP/1.1\r\n" + HOST + b"\r\n"
    yield "a long target that does not end", b"GET /" + long
    yield "no Host", post + KIND + b"Content-Length: 2\r\n\r\n{}"
    yield "no Host in HTTP/1.0", b"GET /health HTTP/1.0\r\n\r\n"
    yield "two Hosts", b"GET /health HTTP/1.1\r\n" + HOST * 2 + b"\r\n"
    yield "another Host", b"GET /health HTTP/1.1\r\nHost: rebound.example\r\n\r\n"
    yield "a Host of bytes", b"GET /health HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n"
    yield "another origin", b"GET /health HTTP/1.1\r\nOrigin: http://foreign.example\r\n" + HOST + b"\r\n"
    yield "an origin that is none", b"GET /health HTTP/1.1\r\nOrigin: null\r\n" + HOST + b"\r\n"
    yield "101 headers", b"GET /health HTTP/1.1\r\n" + HOST + b"a: b\r\n" * 100 + b"\r\n"
    yield "20,000 headers", b"GET /health HTTP/1.1\r\n" + HOST + b"a: b\r\n" * 20_000 + b"\r\n"
    yield "a long header", b"GET /health HTTP/1.1\r\n" + HOST + b"a: " + long + b"\r\n\r\n"
    yield "a long name of a header", b"GET /health HTTP/1.1\r\n" + HOST + long + b": b\r\n\r\n"
    yield "a header without a name", b"GET /health HTTP/1.1\r\n: b\r\n" + HOST + b"\r\n"
    yield "a header without a colon", b"GET /health HTTP/1.1\r\nab\r\n" + HOST + b"\r\n"
    yield "a header with a NUL", b"GET /health HTTP/1.1\r\na: \0\r\n" + HOST + b"\r\n"
    yield "a header that goes on", b"GET /health HTTP/1.1\r\na: b\r\n c\r\n: d\r\n" + HOST + b"\r\n"
    yield "headers that do not end", b"GET /health HTTP/1.1\r\n" + HOST
    yield "empty lines", b"\r\n" * 20_000
    yield "a negative length", post + HOST + KIND + b"Content-Length: -1\r\n\r\n"
    yield "a length of 5,000 digits", post + HOST + KIND + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"
    yield "a length of letters", post + HOST + KIND + b"Content-Length: two\r\n\r\n{}"
    yield "two lengths", post + HOST + KIND + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} "
    yield "a length and chunks", post + chunked().replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n") + b"0\r\n\r\n"
    yield "a length beyond the limit", post + HOST + KIND + b"Content-Length: 99999999999\r\n\r\n{"
    yield "a body that does not end", post + HOST + KIND + b'Content-Length: 999\r\n\r\n{"a'
    yield "a chunk of no number", post + chunked(b"zz\r\n{}\r\n0\r\n\r\n")
    yield "a chunk of a huge number", post + chunked(b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n")
    yield "a chunk that is shorter", post + chunked(b"1\r\n{}\r\n0\r\n\r\n")
    yield "an extension without end", post + chunked(b"2;" + long * 2)
    yield "trailers without end", post + chunked(b"2\r\n[]\r\n0\r\na: " + long * 2)
    yield "20,000 trailers", post + chunked(b"2\r\n[]\r\n0\r\n" + b"a: b\r\n" * 20_000 + b"\r\n")
    yield "an encoding nobody knows", post + HOST + KIND + b"Transfer-Encoding: rot13\r\n\r\n{}"
    yield "text", posted(path, b"{}", b"Content-Type: text/plain\r\n")
    yield "a form", posted(path, b"a=b", b"Content-Type: application/x-www-form-urlencoded\r\n")
    yield "no content type", posted(path, b"{}", b"")
    yield "a content type of bytes", posted(path, b"{}", b"Content-Type: \xff/\xfe; charset=\xfd\r\n")
    yield "a WebSocket nowhere", b"GET /nowhere HTTP/1.1\r\n" + HOST + WEBSOCKET + b"\r\n"
    yield "a WebSocket by POST", post + HOST + WEBSOCKET + b"\r\n"
    yield "a WebSocket without a key", b"GET /ws HTTP/1.1\r\n" + HOST + WEBSOCKET[:-45] + b"\r\n\r\n"
    yield "a WebSocket of version 99", b"GET /ws HTTP/1.1\r\n" + HOST + WEBSOCKET.replace(b"13", b"99") + b"\r\n"
    yield "a WebSocket of bytes", b"GET /ws?\xff HTTP/1.1\r\n" + HOST + WEBSOCKET + b"\r\n"
    yield "a WebSocket with long headers", b"GET /ws?" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + WEBSOCKET + b"\r\n"
    yield (
        "a WebSocket of another page",
        (b"GET /ws HTTP/1.1\r\nOrigin: http://foreign.example\r\n" + HOST + WEBSOCKET + b"\r\n"),
    )


def of_json(path: str, token: str | None = None) -> Iterator[tuple[str, bytes]]:
    """Bodies that are no JSON, or that Python's own reader would take and choke on later."""
    bodies = {
        "nothing": b"", "a brace": b"{", "a word": b"nul", "two values": b"{} {}", "bytes": b"\xff\xfe{}",
        "half of a character": b'{"\xc3": 1}', "UTF-16": "{}".encode("utf-16"), "a byte order mark": b"\xef\xbb\xbf{}",
        "NaN": b'{"a": NaN}', "Infinity": b'{"a": -Infinity}', "a control character": b'{"a": "\x01"}',
        "an integer of 5,000 digits": b'{"seed": ' + b"1" * 5000 + b"}", "deep lists": b"[" * 100_000,
        "deep lists that end": b"[" * 10_000 + b"]" * 10_000, "deep objects": b'{"a":' * 50_000,
        "gzip": b"\x1f\x8b\x08\0",
        "a list": b"[]", "a number": b"7", "a text": b'"text"', "null": b"null", "true": b"true",
        "a list of objects": b"[{}, {}]",
    }  # fmt: skip
    for name, body in bodies.items():
        if path == "/reset" and name in ("nothing", "null"):
            continue  # a reset of whatever the server likes
        yield f"JSON: {name}", posted(path, body, token=token)


SURROGATE = "\ud800"
DEEP_CALL = {"function": {"name": "a", "arguments": "[" * 9000}}
OF_SERVERS: Mapping[str, tuple[tuple[str, Any], ...]] = {
    "environment": (
        ("/step", {"action": {"type": "call_tool", "tool_name": SURROGATE}}),
        ("/step", {"action": {"type": "call_tool", "tool_name": "add", "arguments": SURROGATE}}),
        ("/step", {"action": {"type": ["call_tool"], "tool_name": "add"}}),
        ("/step", {"action": {"text": {"a": 1}}}),
        ("/step", {"action": {"text": "a", "metadata": {"request_id": []}}}),
        ("/step", {"action": {"text": "a", "metadata": []}}),
        ("/step", {"action": {"text": "a", "tool_calls": {"name": "add"}}}),
        ("/step", {"action": {"text": "a", "tool_calls": [{"name": None}]}}),
        ("/step", {"action": {"text": "a"}, "timeout_s": "soon"}),
        ("/step", {"action": {"text": "a"}, "timeout_s": -1}),
        ("/step", {"action": {"text": "a"}, "request_id": "r" * 300}),
        ("/step", {"action": []}),
        ("/reset", {"task": {"id": SURROGATE}}),
        ("/reset", {"task": {"id": "t", "messages": [{"role": "user", "content": SURROGATE}]}}),
        ("/reset", {"task": {"id": "t", "row": []}}),
        ("/reset", {"seed": -1}),
        ("/reset", {"seed": 2**64}),
        ("/reset", {"seed": 1.5}),
        ("/reset", {"episode_id": "e" * 300}),
        ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": SURROGATE}}),
        ("/mcp", {"jsonrpc": "2.0", "id": SURROGATE, "method": "tools/list"}),
    ),
    "reward": (
        ("/get_reward", {"query": []}),
        ("/get_reward", {"query": [["a"]]}),
        ("/get_reward", {"query": ["a"], "prompts": ["b", "c"]}),
        ("/get_reward", {"query": ["a"], "labels": [{}]}),
        ("/get_reward", {"query": ["a"] * 5000}),
        ("/", {"prompt": [1], "response": "a"}),
        ("/", {"response": 1}),
        ("/classify", {"input": []}),
        ("/classify", {"input": [[1], "a"]}),
        ("/pooling", {"input": [-1]}),
        ("/pooling", {"input": [2**40]}),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}),
        ("/score", {"text_1": "a", "text_2": {}}),
    ),
    "sandbox": (
        ("/run_code", {"code": SURROGATE}),
        ("/run_code", {"code": 1}),
        ("/run_code", {"code": "1", "language": "bash"}),
        ("/run_code", {"code": "1", "stdin": {}}),
        ("/run_code", {"code": "1", "files": {"a": "not base64!"}}),
        ("/run_code", {"code": "1", "files": {"a": base64.b64encode(b"a").decode()[:-1] + "\ud800"}}),
        ("/run_code", {"code": "1", "files": []}),
        ("/run_code", {"code": "1", "fetch_files": "a"}),
        ("/run_code", {"code": "1", "run_timeout": "soon"}),
        ("/run_code", {"code": "1", "run_timeout": -1}),
        ("/run_code", {"code": "1", "memory_limit_MB": 1.5}),
    ),
    "policy": (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": SURROGATE}]}),
        ("/v1/chat/completions", {"messages": [{"role": "boss", "content": "a"}]}),
        ("/v1/chat/completions", {"messages": [GO], "n": 2}),
        ("/v1/chat/completions", {"messages": [GO], "max_tokens": 0}),
        ("/v1/chat/completions", {"messages": [GO], "stream": "perhaps"}),
        ("/v1/chat/completions", {"messages": [GO], "tools": {"type": "function"}}),
        ("/v1/chat/completions", {"messages": [GO], "tools": [{"type": "function", "function": {"name": 1}}]}),
        ("/v1/chat/completions", {"messages": [GO], "seed": "one"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [DEEP_CALL]}]}),
        ("/sessions/nobody/v1/chat/completions", {"messages": [GO]}),
        ("/sessions/nobody/end", {"reward": 1.0}),
    ),
}  # fmt: skip
"""Bodies that are JSON, and no request of the server."""
MCP = b"Accept: application/json, text/event-stream\r\n"
OF_MCP: tuple[Any, ...] = (
    [], "initialize", {"id": []}, {"id": 1.5, "method": "ping"}, {"id": 1, "method": ["ping"]}, {"id": 1},
    {"id": 1, "method": "initialize", "params": [1]}, {"id": 1, "method": "tools/call", "params": "add"},
    {"id": 1, "method": "tools/call", "params": [["name", "add"]]}, {"id": {}, "method": "tools/list"},
)  # fmt: skip


def of_server(name: str, token: str | None = None) -> Iterator[tuple[str, bytes]]:
    for path, body in OF_SERVERS[name]:
        yield f"{path} {json.dumps(body)[:80]}", posted(path, json.dumps(body).encode(), token=token)
    if name == "environment":
        for body in OF_MCP:
            yield f"MCP {json.dumps(body)[:80]}", posted("/mcp", json.dumps(body).encode(), KIND + MCP, token)


def by_hand(name: str, token: str | None = None) -> list[tuple[str, bytes]]:
    """All of them for one server, each with what it is."""
    first = PATHS[name][0]
    json_bodies = [one for path in PATHS[name] for one in of_json(path, token)]
    return [*of_http(first), *json_bodies, *of_server(name, token)]
