"""The child's side of `rlhf.cluster.child`: take over the process, read requests, send answers, fork on request.

Only the standard library is imported here, so that a child starts as fast as the code that it runs can be imported.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Callable, Iterator

PR_SET_PDEATHSIG = 1


class Connection:
    """The child's end of the socket to its parent. Iterating yields requests, one line of bytes each, until the parent
    closes its end."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._stream = channel.makefile("rwb")
        self._process = os.getpid()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream)

    def send(self, answer: str) -> None:
        """Send one answer: JSON without line breaks. A process that user code forked, and that returned from it like
        its parent, ends here: a second answer would be taken for that of the next request."""
        if os.getpid() != self._process:
            os._exit(0)
        self._stream.write(answer.encode() + b"\n")
        self._stream.flush()

    def first(self) -> bytes:
        """Return the first request, which holds the settings; exit if the parent has gone."""
        return self._stream.readline() or os._exit(1)

    def fork_for_each(self, serve: Callable[[Connection], None]) -> None:
        """Fork a process for every socket that the parent sends. It leads a process group, reports its id, runs `serve`
        on its connection, and exits in every case. Return when the parent closes its end."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forks
        while True:
            received, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1)
            if not received:
                return
            with socket.socket(fileno=descriptors[0]) as channel:
                parent = os.getpid()
                if os.fork() == 0:
                    self._channel.close()
                    _serve_fork(channel, parent, serve)


def connect_to_parent(descriptor: int, parent: int) -> Connection:
    """Take over a process that `Child.start` started: it ends with its parent, ignores Ctrl-C, and is the first that
    the kernel kills when memory runs out, before the trainer."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    return Connection(socket.socket(fileno=descriptor))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies for any reason; exit if it is dead already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the request reached the kernel
        os._exit(1)


def _serve_fork(channel: socket.socket, parent: int, serve: Callable[[Connection], None]) -> None:
    try:
        os.setsid()
        die_with_parent(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection = Connection(channel)
        connection.send(f'{{"process": {os.getpid()}}}')
        serve(connection)
    finally:
        os._exit(0)
