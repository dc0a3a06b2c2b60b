"""A fork server: it makes the slow imports once, and every worker that needs them is forked from it.

    python -m rlhf.cluster.forking.server SOCKET OWNER_PID MODULE:FUNCTION…

A request is one packet: what to run, as JSON, and the file descriptors of its standard streams. The answers are the new
process's id and, after it has ended, its wait status and processor time. The server has one thread, so that a fork
copies a consistent state. It ends with its owner, and all processes that it forked end with it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import psutil

from rlhf.cluster.host import resolve_name

PACKET_BYTES = 1 << 20
TICK_SECONDS = 1.0
REQUEST_SECONDS = 5.0
PR_SET_CHILD_SUBREAPER = 36


def fork_server_main(path: str, owner: int, imports: Sequence[str]) -> None:
    """Listen, import, and then serve fork requests until the owner ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(64)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    before = dict(os.environ)
    _import_all(imports)
    set_by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    gc.collect()
    gc.freeze()  # so that garbage collection in a child does not touch, and so copy, shared pages
    try:
        ForkRequests(listening, owner, set_by_imports).run()
    finally:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _import_all(imports: Sequence[str]) -> None:
    """Make the imports without `ray`: Ray's core reads the environment at import, and each child has its own
    environment."""
    sys.modules["ray"] = None  # type: ignore[assignment]
    for function in imports:
        resolve_name(function)()
    del sys.modules["ray"]


class ForkRequests:
    """Serves fork requests one by one, and reports to each client how its process ended."""

    def __init__(self, listening: socket.socket, owner: int, set_by_imports: dict[str, str]) -> None:
        self._listening, self._owner, self._set_by_imports = listening, owner, set_by_imports
        self._children: dict[int, socket.socket] = {}
        self._awoken, self._wake = socket.socketpair()
        for end in (self._awoken, self._wake):
            end.setblocking(False)

    def run(self) -> None:
        """Serve requests and reap children until the owner ends."""
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        selector = selectors.DefaultSelector()
        selector.register(self._listening, selectors.EVENT_READ)
        selector.register(self._awoken, selectors.EVENT_READ)
        while psutil.pid_exists(self._owner):
            for key, _ in selector.select(TICK_SECONDS):
                if key.fileobj is self._listening:
                    self._accept()
                else:
                    self._awoken.recv(4096)
            self._reap()

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        client.settimeout(REQUEST_SECONDS)
        try:
            packet, descriptors, _, _ = socket.recv_fds(client, PACKET_BYTES, 8)
            request = json.loads(packet)
        except (OSError, ValueError):  # the client is gone, sent nothing, or sent something unreadable
            client.close()
            return
        child = os.fork()
        if child == 0:
            self._become(request, descriptors, client)
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[child] = client
        _tell(client, {"pid": child})

    def _reap(self) -> None:
        """Collect every process that has ended, adopted ones too."""
        with suppress(ChildProcessError):
            while (ended := os.wait3(os.WNOHANG))[0]:
                child, status, used = ended
                client = self._children.pop(child, None)
                if client is not None:
                    _tell(client, {"status": status, "processor_seconds": used.ru_utime + used.ru_stime})
                    client.close()

    def _become(self, request: dict[str, Any], descriptors: list[int], client: socket.socket) -> NoReturn:
        """Turn this fork into the requested program, and run it to its end."""
        signal.set_wakeup_fd(-1)
        for mine in (self._listening, self._awoken, self._wake, client, *self._children.values()):
            mine.close()
        try:
            _take_over(request, descriptors, self._set_by_imports)
            code = _exit_code(request["arguments"])
        except BaseException:  # noqa: BLE001 - the last frame of the process: printed, and turned into its exit code
            traceback.print_exc()
            code = 1
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _tell(client: socket.socket, answer: dict[str, float]) -> None:
    with suppress(OSError):  # the client may have closed its connection
        client.send(json.dumps(answer).encode())


def _take_over(request: dict[str, Any], descriptors: list[int], set_by_imports: dict[str, str]) -> None:
    """Set the session, signals, streams, environment, folder and random state as a newly started process has them."""
    if request["new_session"]:
        os.setsid()
    else:
        os.setpgid(0, 0)  # Ray kills the process group of a worker that ended
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    ignored = signal.SIGINT in request["ignored_signals"]
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    for target, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, target)
        os.close(descriptor)
    for extra, descriptor in zip(request["inherited"], descriptors[3:], strict=True):
        request["arguments"] = [str(descriptor) if word == extra else word for word in request["arguments"]]
    os.environ.clear()
    os.environ.update(set_by_imports | request["environment"])
    os.chdir(request["folder"])
    tempfile.tempdir = None
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def _exit_code(arguments: list[str]) -> int:
    """Run `-m module …`, `-c program …` or `file …` as the interpreter does."""
    try:
        _run(arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return 128 + signal.SIGINT
    return 0


def _run(arguments: list[str]) -> None:
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if arguments[0] == "-m":
        sys.path[:0] = [os.getcwd(), *paths]
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.path[:0] = ["", *paths]
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[:0] = [os.path.dirname(arguments[0]), *paths]
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    fork_server_main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
