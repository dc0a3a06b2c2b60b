"""Hostile and broken answers below JSON, and JSON that is none, for every client that speaks HTTP."""

from __future__ import annotations

import gzip
import zlib

from tests.attacks.peers.server import Parts, ok

CRLF = b"\r\n"
BOMB = gzip.compress(b"0" * (64 * 2**20))
"""64 MiB in 64 KiB."""
BOMBS = gzip.compress(BOMB)
JSON = "content-type: application/json"
DEEP = 100_000


def status(code: object, body: bytes = b"", *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code}", "connection: close", *headers, "", ""]).encode() + body


def chunked(*chunks: bytes) -> bytes:
    return ok(b"".join(chunks), "transfer-encoding: chunked", JSON)


HTTP: dict[str, Parts] = {
    "nothing": b"",
    "garbage": b"\x00\xff\x16\x03\x01" * 200,
    "a tls hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 300,
    "http/0.9": b'{"rewards": [1]}',
    "no status": b"HTTP/1.1\r\n\r\n",
    "status of two digits": status("99 X"),
    "status of four digits": status("2000 X"),
    "status that is text": status("OK"),
    "a later version": b"HTTP/3.0 200 OK\r\n\r\n{}",
    "a reason of controls": b"HTTP/1.1 200 \x1b[2J\x9b31m\r\n\r\n{}",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-ty",
    "a header without a colon": b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n{}",
    "a header with nul": b"HTTP/1.1 200 OK\r\na: \0\r\n\r\n{}",
    "a folded header": b"HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n{}",
    "a header of 300 kB": ok(b"{}", "a: " + "b" * 300_000),
    "ten thousand headers": ok(b"{}", *[f"h{n}: {n}" for n in range(10_000)]),
    "cookies": ok(b"{}", *[f"set-cookie: c{n}={'v' * 100}; Path=/" for n in range(500)]),
    "a cookie of semicolons": ok(b"{}", "set-cookie: a=b" + "; a=b" * 10_000),
    "negative length": ok(b"{}", "content-length: -1"),
    "length that is text": ok(b"{}", "content-length: ten"),
    "two lengths": ok(b"{}", "content-length: 2", "content-length: 200"),
    "less than its length": ok(b"{}", "content-length: 200"),
    "a length beyond all disks": ok(b"{}", "content-length: " + "9" * 30),
    "chunks and a length": ok(b"2\r\n{}\r\n0\r\n\r\n", "transfer-encoding: chunked", "content-length: 2"),
    "a chunk of no size": chunked(b"xyz\r\n{}\r\n"),
    "a chunk of a negative size": chunked(b"-2\r\n{}\r\n"),
    "a chunk beyond all disks": chunked(b"f" * 40 + b"\r\n{}"),
    "a chunk that is longer than its size": chunked(b"1\r\n{}{}{}\r\n0\r\n\r\n"),
    "chunks without an end": chunked(b"2\r\n{}\r\n"),
    "ten thousand chunks of a byte": chunked(b"1\r\n \r\n" * 10_000, b"0\r\n\r\n"),
    "a trailer of 200 kB": chunked(b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 33_000 + b"\r\n"),
    "an encoding that nobody knows": ok(b"{}", "transfer-encoding: snail"),
    "gzip": ok(gzip.compress(b"{}"), "content-encoding: gzip", JSON),
    "a bomb": ok(BOMB, "content-encoding: gzip", JSON),
    "a bomb in a bomb": ok(BOMBS, "content-encoding: gzip, gzip", JSON),
    "a bomb that says identity too": ok(BOMBS, "content-encoding: identity, gzip, gzip", JSON),
    "deflate": ok(zlib.compress(b"{}"), "content-encoding: deflate", JSON),
    "brotli that is none": ok(b"{}", "content-encoding: br", JSON),
    "zstd that is none": ok(b"{}", "content-encoding: zstd", JSON),
    "a bomb as an error": status("500 X", BOMBS, "content-encoding: gzip, gzip"),
    "elsewhere": status("302 Found", b"", "location: http://192.0.2.1:9/"),
    "elsewhere, with the body": status("307 X", b"", "location: http://127.0.0.1:9/x"),
    "to a file": status("301 X", b"", "location: file:///etc/passwd"),
    "to nowhere": status("308 X", b"", "location: http://[::1/"),
    "to itself": status("302 X", b"", "location: /"),
    "another protocol": status("101 X", b"", "upgrade: h2c", "connection: upgrade"),
    "no content": status("204 X"),
    "not modified": status("304 X"),
    "busy for ever": status("503 X", b"", "retry-after: " + "9" * 400),
    "busy, not a number": status("429 X", b"", "retry-after: nan"),
    "busy, in thousand years": status("503 X", b"", "retry-after: Fri, 31 Dec 9999 23:59:59 GMT"),
    "an error with commands": status("500 X", b"\x1b[2J\x1b]0;owned\x07\x9b31m\xff\xfe\r\nline"),
    "refused": status("401 X", b"\x1b[31mno\xff"),
    "an error of 10 MB": status("500 X", b"x" * 10_000_000),
    "an error without an end of its line": status("500 X", "\u202e\u2028\x85".encode() * 1000),
    "another alphabet": ok(b"{}", "content-type: application/json; charset=snail"),
    "utf-16": ok('{"a": 1}'.encode("utf-16"), JSON),
    "bytes that are no text": ok(b'{"a": "\xff\xfe\xed\xa0\x80"}', JSON),
    "a byte order mark": ok(b"\xef\xbb\xbf{}", JSON),
    "two answers": ok(b"{}", "content-length: 2") + ok(b'{"rewards": [9]}'),
}
"""Below JSON."""

TEXTS: dict[str, bytes] = {
    "an empty body": b"",
    "a page": b"<html>\x1b[2J</html>",
    "nan": b"NaN",
    "infinity": b"-Infinity",
    "beyond all floats": b"1e999",
    "five thousand digits": b"9" * 5000,
    "four hundred digits": b"9" * 400,
    "deep arrays": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep and unfinished": b"[" * DEEP,
    "deep as a recursion": b"[" * 900 + b"]" * 900,
    "a million empty arrays": b"[" + b"[]," * 1_000_000 + b"1]",
    "three million empty arrays": b"[" + b"[]," * 3_000_000 + b"1]",
    "null": b"null",
    "a truth value": b"true",
    "text": b'"1.0"',
    "a list": b"[]",
    "an object": b"{}",
    "two values": b"{} {}",
    "a comma too many": b'{"a": 1,}',
    "single quotes": b"{'a': 1}",
    "a comment": b"{} // x",
    "one key twice": b'{"rewards": [1], "rewards": "x"}',
    "half a character": b'"\\ud800"',
    "half a character as a key": b'{"\\udfff": 1}',
    "nul in a text": b'{"a": "\\u0000"}',
    "controls in a text": b'"\x1b"',
    "blanks": b" " * 1_000_000,
}
"""Bodies of successes."""


def every_answer() -> dict[str, Parts]:
    return HTTP | {f"json: {name}": ok(text, JSON) for name, text in TEXTS.items()}


SLOW: dict[str, Parts] = {
    "a head that never ends": (b"HTTP/1.1 200 OK\r\n", *[b"a: b\r\n"] * 200),
    "a byte at a time": (b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n", *[b" "] * 300),
    "early hints for ever": [b"HTTP/1.1 103 X\r\nlink: a\r\n\r\n"] * 300,
    "continue for ever": [b"HTTP/1.1 100 X\r\n\r\n"] * 300,
    "an error a byte at a time": (b"HTTP/1.1 500 X\r\ncontent-length: 500\r\n\r\n", *[b" "] * 300),
    "silence": [b""] * 300,
}
"""Answers that outlast every deadline for a part of them; each is sent over fifteen seconds."""
