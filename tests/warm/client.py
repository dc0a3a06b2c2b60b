"""Asks the session's fork server for processes, and starts it when it is first asked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

from rlhf.cluster.fork_client import SOCKET
from rlhf.cluster.ray_connection import PRIVATE_RAY
from rlhf.engines.vllm.environment import engine_environment
from rlhf.trainer.rank.process_memory import rank_environment
from tests.pace import scaled

ROOT = Path(__file__).parents[2]
INTERPRETER = Path(__file__).parent / "interpreter.py"
FOLDER = "RLHF_TEST_WARM"
"""The environment variable with the session's folder: of the socket, and of the server's log."""
START_SECONDS, END_SECONDS = scaled(120), scaled(20)
PACKET_BYTES = 1 << 16
IMPORTS = (
    "tests.older_processor:pretend",
    "rlhf.trainer.rank.learner_worker:import_ranks",
    "rlhf.engines.vllm.engine_worker:import_engine",
    "tests.warm.imports:import_commands",
)
IMPORTED_WITH = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


class WarmProcess:
    """A process that was forked for us, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, connection: socket.socket, arguments: Sequence[str]) -> None:
        self.pid, self.args = pid, list(arguments)
        self.returncode: int | None = None
        self.processor_seconds = 0.0
        """Of the process and all children that it waited for, once it has ended."""
        self._connection = connection

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._connection.settimeout(timeout if timeout else None if timeout is None else 1e-6)
            try:
                answer = self._connection.recv(PACKET_BYTES)
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            assert answer, "the warm server ended"
            self._connection.close()
            ended = json.loads(answer)
            self.processor_seconds = ended["processor_seconds"]
            self.returncode = os.waitstatus_to_exitcode(ended["status"])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[object],
    *,
    environment: Mapping[str, str],
    folder: Path = ROOT,
    stdout: IO[Any] | int = 1,
    stderr: IO[Any] | int = 2,
    inherited: Sequence[int] = (),
    server: Path | None = None,
) -> WarmProcess:
    """Start `-m module …`, `-c program …` or `file.py …` in a fork of the session's server, or of `server`.

    The numbers of inherited descriptors there become the last arguments.
    """
    words = [str(word) for word in arguments]
    run = words if words[0] == "-m" else [str(INTERPRETER), *words]
    request = {"arguments": run, "environment": dict(environment), "folder": str(folder)}
    connection = _connected(server or started())
    with open(os.devnull) as nothing:
        streams = [nothing.fileno(), *(s if isinstance(s, int) else s.fileno() for s in (stdout, stderr))]
        socket.send_fds(connection, [json.dumps(request).encode()], [*streams, *inherited])
    connection.settimeout(START_SECONDS)
    pid = json.loads(connection.recv(PACKET_BYTES))["pid"]
    return WarmProcess(pid, connection, words)


class Ended(subprocess.CompletedProcess[str]):
    """How a process ended, what it printed and what it cost: that on the wall depends on what else runs."""

    processor_seconds: float


def run(
    arguments: Sequence[object],
    *,
    environment: Mapping[str, str],
    folder: Path = ROOT,
    timeout: float,
    server: Path | None = None,
) -> Ended:
    """Run to the end and keep what was printed, in a fork of the session's server or of `server`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start(arguments, environment=environment, folder=folder, stdout=out, stderr=err, server=server)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired as late:
            process.kill()
            process.wait(START_SECONDS)
            raise subprocess.TimeoutExpired(late.cmd, timeout, _read(out), _read(err)) from None
        ended = Ended(process.args, code, _read(out), _read(err))
        ended.processor_seconds = process.processor_seconds
        return ended


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def started() -> Path:
    """The session's server, which the first who asks starts."""
    folder = Path(os.environ[FOLDER])
    with suppress(FileExistsError):
        (folder / "started").touch(exist_ok=False)
        _start_server(folder)
    return folder / "socket"


def _connected(server: Path) -> socket.socket:
    """A connection, once the server listens."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(str(server))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            assert time.monotonic() < deadline, f"no fork server: {(server.parent / 'log').read_text()[-2000:]}"
            time.sleep(0.05)
        else:
            return connection


def _start_server(folder: Path) -> None:
    roles = engine_environment("cpu") | rank_environment("cpu") | PRIVATE_RAY
    environment = os.environ | IMPORTED_WITH | roles | {"PYTHONPATH": str(ROOT)}
    owner = (folder / "owner").read_text()
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "rlhf.cluster.fork_server", str(folder / "socket"), owner, *IMPORTS],
            env=environment, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    (folder / "server").write_text(str(server.pid))


def make_folder(owner: int) -> None:
    """Called once a session: where its server will be found. The server ends with the process `owner`."""
    folder = Path(tempfile.mkdtemp(prefix="w", dir="/tmp"))
    (folder / "owner").write_text(str(owner))
    os.environ[FOLDER] = str(folder)
    os.environ[SOCKET] = str(folder / "socket")


def end() -> None:
    """End the server and all that it forked, and remove the folder."""
    folder = Path(os.environ.pop(FOLDER))
    del os.environ[SOCKET]
    with suppress(FileNotFoundError, psutil.NoSuchProcess):
        server = psutil.Process(int((folder / "server").read_text()))
        server.terminate()
        server.wait(END_SECONDS)
    shutil.rmtree(folder)
