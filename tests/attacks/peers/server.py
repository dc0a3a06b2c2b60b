"""A server that answers every connection with given bytes, and a count of the harm that its answers do."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf.runs.jsonl import JsonlWriter

Parts = bytes | Iterable[bytes]
"""What is sent; of several parts each after a pause."""
Talk = Callable[[socket.socket], None]
Heard = dict[str, Any]
"""What a client made of an answer; under `failed` the text of a failure with a name."""


@contextlib.contextmanager
def answering(talk: Talk) -> Iterator[str]:
    """A server on loopback whose every connection is `talk`'s, in a thread of its own; gives its URL."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    open_sockets: list[socket.socket] = []

    def one(connection: socket.socket) -> None:
        with contextlib.suppress(OSError, StopIteration), connection:
            talk(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                connection.settimeout(20)
                open_sockets.append(connection)
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for connection in open_sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        accepting.join(5)


def saying(parts: Parts, pause_seconds: float = 0.05) -> Talk:
    """Reads a request and answers it, whatever it was."""

    def talk(connection: socket.socket) -> None:
        read_request(connection)
        for part in [parts] if isinstance(parts, bytes) else parts:
            connection.sendall(part)
            if not isinstance(parts, bytes):
                time.sleep(pause_seconds)

    return talk


def read_request(connection: socket.socket) -> bytes:
    """The head of a request; its body is read as far as it says."""
    head = b""
    while b"\r\n\r\n" not in head:
        part = connection.recv(65536)
        if not part:
            raise StopIteration
        head += part
    head, _, body = head.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        body += connection.recv(65536)
    return head


def ok(body: bytes, *headers: str) -> bytes:
    """A success with these headers, whose body ends with the connection's."""
    lines = ["HTTP/1.1 200 OK", "connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def harm_of(
    ask: Callable[[str], Coroutine[Any, Any, Heard]], answers: Mapping[str, Parts], folder: Path, longest_seconds: float
) -> dict[str, str]:
    """The answers that did harm, and which: an exception without a name, a wait that is too long, a record that cannot
    be written."""
    harm: dict[str, str] = {}
    current: list[Parts] = [b""]
    lines = JsonlWriter(folder / "lines.jsonl", buffered_lines=1)
    with answering(lambda connection: saying(current[0])(connection)) as url:
        for name, parts in answers.items():
            current[0], began = parts, time.monotonic()
            try:
                heard = await ask(url)
                assert len(str(heard.get("failed", ""))) < 5000
                lines.write([heard])
            except BaseException as error:  # noqa: BLE001 - that none gets here is tested
                harm[name] = f"{type(error).__name__}: {error}"[:200]
            if (seconds := time.monotonic() - began) > longest_seconds:
                harm[name] = f"took {seconds:.1f} s"
    lines.close()
    return harm
