"""A fork server: it makes the slow imports once, and every worker that needs them is forked from it.

    python -m rlhf.cluster.forking.server SOCKET OWNER_PID MODULE:FUNCTION…

A request is one packet: what to run, as JSON, and the file descriptors of its standard streams. The answers are the new
process's id and, after it has ended, its wait status and processor time. The server has one thread, so that a fork
copies a consistent state. It ends with its owner, and all processes that it forked end with it.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import psutil

from rlhf.cluster.child_side import die_with_parent
from rlhf.cluster.host import resolve_name
from rlhf.cluster.supervisor import become_subreaper

PACKET_BYTES = 1 << 20
TICK_SECONDS = 1.0
REQUEST_SECONDS = 5.0


def fork_server_main(path: str, owner: int, imports: Sequence[str]) -> None:
    """Listen, import, and then serve fork requests until the owner ends."""
    become_subreaper()
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
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps every child, adopted ones too
    server = os.getpid()
    try:
        while psutil.pid_exists(owner):
            if select.select([listening], [], [], TICK_SECONDS)[0]:
                client, _ = listening.accept()
                if os.fork() == 0:
                    listening.close()
                    _serve(client, server, set_by_imports)
                client.close()
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


def _serve(client: socket.socket, server: int, set_by_imports: dict[str, str]) -> NoReturn:
    """Fork the requested program from this fork, which waits for it and reports how it ended."""
    try:
        die_with_parent(server)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        client.settimeout(REQUEST_SECONDS)
        packet, descriptors, _, _ = socket.recv_fds(client, PACKET_BYTES, 8)
        request = json.loads(packet)
        waiting = os.getpid()
        program = os.fork()
        if program == 0:
            client.close()
            die_with_parent(waiting)
            _become(request, descriptors, set_by_imports)
        for descriptor in descriptors:
            os.close(descriptor)
        _send(client, {"pid": program})
        _, status, used = os.wait4(program, 0)
        _send(client, {"status": status, "processor_seconds": used.ru_utime + used.ru_stime})
    except (OSError, ValueError):  # the client is gone, sent nothing, or sent something unreadable
        pass
    finally:
        os._exit(0)


def _send(client: socket.socket, answer: dict[str, float]) -> None:
    with suppress(OSError):  # the client may have closed its connection
        client.send(json.dumps(answer).encode())


def _become(request: dict[str, Any], descriptors: list[int], set_by_imports: dict[str, str]) -> NoReturn:
    """Turn this fork into the requested program, and run it to its end."""
    try:
        _take_over(request, descriptors, set_by_imports)
        code = _exit_code(request["arguments"])
    except BaseException:  # noqa: BLE001 - the last frame of the process: printed, and turned into its exit code
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _take_over(request: dict[str, Any], descriptors: list[int], set_by_imports: dict[str, str]) -> None:
    """Set the session, signals, streams, environment, folder and random state as a newly started process has them."""
    if request["new_session"]:
        os.setsid()
    else:
        os.setpgid(0, 0)  # Ray kills the process group of a worker that ended
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
