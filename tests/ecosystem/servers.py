"""Servers of others in processes of their own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import httpx

START_SECONDS = 60
STOP_SECONDS = 30


@contextlib.contextmanager
def started(words: Callable[[int], Sequence[str]], env: Mapping[str, str] | None = None) -> Iterator[str]:
    """The URL of a server whose command, for a port, is `words`. It ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(words(port), env=env) as process:
        try:
            yield when_healthy(f"http://127.0.0.1:{port}", process)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            finally:
                process.kill()


def when_healthy(url: str, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                return url
        time.sleep(0.2)
    raise TimeoutError(f"{url} did not start within {START_SECONDS} s")
