"""A fork server: it makes the slow imports once, and every worker that needs them is forked from it.

    python -m rlhf.cluster.fork_server SOCKET OWNER_PID MODULE:FUNCTION…

A request is one packet: a file or `-m MODULE` to run, with arguments, as JSON, and the file descriptors of its standard
streams. The numbers of further descriptors become its last arguments. The answers are the new process's id and, after
it has ended, its wait status and processor time. The server has one thread, so that a fork copies a consistent state.
It ends with its owner, and all processes that it forked end with it.
"""

from __future__ import annotations

import gc
import json
import os
import random
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psutil

from rlhf.cluster import fork_client
from rlhf.cluster.child_side import die_with_parent
from rlhf.cluster.host import resolve_name
from rlhf.cluster.leftovers import end_process
from rlhf.cluster.local import gpu_environment, shared_environment, thread_environment
from rlhf.cluster.roles import Role
from rlhf.cluster.supervisor import become_subreaper, run_to_end
from rlhf.errors import PlacementError

PACKET_BYTES = 1 << 20
TICK_SECONDS, REQUEST_SECONDS, END_SECONDS = 1.0, 5.0, 5.0


class ForkServer:
    """A fork server process that imports in the background; a fork request waits until the imports are done."""

    def __init__(self, folder: Path, imports: Iterable[str], environment: Mapping[str, str], log: Path) -> None:
        self.socket = folder / "forks"
        paths = os.pathsep.join(filter(None, sys.path))
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rlhf.cluster.fork_server", str(self.socket), str(os.getpid()), *imports],
                env=os.environ | {"PYTHONPATH": paths} | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def stop(self) -> None:
        """End the server and every fork that is still running."""
        end_process(self._process, END_SECONDS)


def forked_environment(roles: Sequence[Role]) -> dict[str, str] | None:
    """Return the environment of a fork server shared by all workers, or None if they cannot share one.

    Variables and thread pools are read at import, so all roles must agree on them. CUDA does not work across a fork.
    """
    chosen = [role for role in roles if role.imports]
    if len({role.threads for role in chosen}) != 1 or any(role.gpus for role in chosen):
        return None
    try:
        return thread_environment(chosen) | shared_environment(chosen) | gpu_environment(chosen)
    except PlacementError:
        return None


def forked_by_ray(server: Path) -> dict[str, object]:
    """Return Ray's `runtime_env` for a worker that is forked from the server."""
    program = shlex.join([sys.executable, "-S", "-E", fork_client.__file__])
    return {"py_executable": program, "env_vars": {fork_client.SOCKET: str(server)}}


def fork_server_main(path: str, owner: int, imports: Sequence[str]) -> None:
    """Listen, import, and then serve fork requests until the owner ends."""
    become_subreaper()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(64)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    before = dict(os.environ)
    gc.disable()  # a fifth of the time of these imports, which leave no garbage
    _import_all(imports)
    set_by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    gc.freeze()  # so that garbage collection in a child does not touch, and so copy, shared pages
    gc.enable()
    wakeup, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    clients: dict[int, socket.socket] = {}
    try:
        while psutil.pid_exists(owner):
            ready, _, _ = select.select([listening, wakeup], [], [], TICK_SECONDS)
            if wakeup in ready:
                wakeup.recv(4096)
                _report_ended(clients)
            if listening in ready:
                client, _ = listening.accept()
                _serve(client, clients, [listening, wakeup, writer], set_by_imports)
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


def _report_ended(clients: dict[int, socket.socket]) -> None:
    """Reap every process that has ended, including adopted ones, and notify the client that started it."""
    with suppress(ChildProcessError):
        while (ended := os.wait4(-1, os.WNOHANG))[0]:
            process, status, used = ended
            if client := clients.pop(process, None):
                _send(client, {"status": status, "processor_seconds": used.ru_utime + used.ru_stime})
                client.close()


def _serve(
    client: socket.socket, clients: dict[int, socket.socket], own: Sequence[socket.socket], imported: Mapping[str, str]
) -> None:
    """Read a request and fork the requested program."""
    client.settimeout(REQUEST_SECONDS)
    try:
        packet, descriptors, _, _ = socket.recv_fds(client, PACKET_BYTES, 8)
        request = json.loads(packet)
    except (OSError, ValueError):  # the client is gone, sent nothing, or sent something unreadable
        client.close()
        return
    server, program = os.getpid(), os.fork()
    if program == 0:
        signal.set_wakeup_fd(-1)
        for inherited in (client, *clients.values(), *own):
            inherited.close()
        _become(server, request, descriptors, imported)
    for descriptor in descriptors:
        os.close(descriptor)
    clients[program] = client
    _send(client, {"pid": program})


def _send(client: socket.socket, answer: dict[str, float]) -> None:
    with suppress(OSError):  # the client may have closed its connection
        client.send(json.dumps(answer).encode())


def _become(
    server: int, request: dict[str, Any], descriptors: Sequence[int], set_by_imports: Mapping[str, str]
) -> NoReturn:
    """Turn this fork into the requested program, and run it to its end."""
    code = 1
    try:
        os.setsid()  # Ray kills the process group of a worker that ended
        die_with_parent(server)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for target, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update({**set_by_imports, **request["environment"]})
        code = run_to_end(partial(_run, [*request["arguments"], *map(str, descriptors[3:])], request["folder"]))
    finally:
        os._exit(code)


def _run(arguments: list[str], folder: str) -> int:
    """Run a file or a module as a new interpreter does: forks share no random numbers."""
    os.chdir(folder)
    tempfile.tempdir = None
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    is_module = arguments[0] == "-m"
    sys.argv = arguments[is_module:]
    first = folder if is_module else os.path.dirname(arguments[0])
    sys.path[:0] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    run = partial(runpy.run_module, alter_sys=True) if is_module else runpy.run_path
    run(sys.argv[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    fork_server_main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
