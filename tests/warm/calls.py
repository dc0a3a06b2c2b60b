"""Functions called one after another in a process of their own that is forked from the warm server."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from tests.warm.client import start

END_SECONDS = 30


class WarmCalls:
    """The process, and calls to it. What is called, with its arguments and its answer, must be picklable."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            words = ("-m", "tests.warm.calls")
            self.process = start(words, environment=os.environ, inherited=[theirs.fileno()])
        self._connection = Connection(ours.detach())
        self._calling = ThreadPoolExecutor(1)

    def submit(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
        return self._calling.submit(self._call, function, arguments, named)

    def end(self) -> None:
        """Kill the process, whatever it does."""
        self.process.kill()
        self.process.wait(END_SECONDS)
        self._calling.shutdown(wait=True, cancel_futures=True)
        self._connection.close()

    def _call(self, function: Callable[..., Any], arguments: Any, named: Any) -> Any:
        self._connection.send_bytes(pickle.dumps((function, arguments, named)))
        value, error = pickle.loads(self._connection.recv_bytes())
        if error is not None:
            raise error
        return value


def main(descriptor: int) -> None:
    """Answer calls until the other side is gone."""
    connection = Connection(descriptor)
    while True:
        try:
            asked = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(_answer(asked))


def _answer(asked: bytes) -> bytes:
    try:
        function, arguments, named = pickle.loads(asked)
        value = function(*arguments, **named)
        return pickle.dumps((asyncio.run(value) if asyncio.iscoroutine(value) else value, None))
    except Exception as error:  # noqa: BLE001 - whatever it is belongs to the other side
        return pickle.dumps((None, error))


if __name__ == "__main__":
    main(int(sys.argv[1]))
