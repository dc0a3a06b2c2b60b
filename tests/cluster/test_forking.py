"""The fork server: what is forked is a process of its own, and no client takes the server along."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rlhf.cluster.fork_client import SOCKET
from rlhf.cluster.fork_server import ForkServer, forked_by_ray, forked_environment
from rlhf.cluster.roles import Role
from rlhf.cluster.supervisor import socket_folder
from tests.pace import scaled
from tests.warm.client import WarmProcess, start

SECONDS = scaled(20)


@pytest.fixture
def server() -> Iterator[ForkServer]:
    folder = socket_folder("t-")
    server = ForkServer(folder, ["tests.cluster.workers:imported_ahead"], {"OMP_NUM_THREADS": "1"}, folder / "log")
    yield server
    server.stop()


def python(server: ForkServer, program: str, **variables: str) -> WarmProcess:
    return start(("-c", program), environment=os.environ | variables, server=server.socket)


def test_a_fork_has_the_imports_of_the_server_and_an_environment_and_folder_of_its_own(
    server: ForkServer, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    program = (
        f"import os, sys; open({str(seen)!r}, 'w').write(f'{{\"colorsys\" in sys.modules}} {{os.environ[\"OWN\"]}}')"
    )
    assert python(server, program, OWN="yes").wait(SECONDS) == 0
    assert seen.read_text() == "True yes"


def test_how_a_fork_ended_is_told_to_whoever_asked_for_it(server: ForkServer) -> None:
    assert python(server, "raise SystemExit(7)").wait(SECONDS) == 7
    assert python(server, "import os; os.kill(os.getpid(), 9)").wait(SECONDS) == -signal.SIGKILL
    assert python(server, "raise ValueError").wait(SECONDS) == 1


@pytest.mark.waits
def test_a_module_runs_in_a_fork_and_gets_the_sigterm_of_its_client(server: ForkServer, tmp_path: Path) -> None:
    python(server, "pass").wait(SECONDS)
    program = f"import os, time; open({str(tmp_path / 'runs')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    started = forked_by_ray(server.socket)
    words = [*shlex.split(str(started["py_executable"])), "-m", "timeit", "-n1", program]
    client = subprocess.Popen(words, env=os.environ | {SOCKET: str(server.socket)}, cwd=tmp_path)
    deadline = time.monotonic() + SECONDS
    while not (pid := (tmp_path / "runs").exists() and (tmp_path / "runs").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert client.poll() is None
    client.terminate()
    assert client.wait(SECONDS) == 256 - signal.SIGTERM
    assert not psutil.pid_exists(int(pid))


def test_clients_that_leave_at_any_moment_take_nothing_along(server: ForkServer) -> None:
    python(server, "pass").wait(SECONDS)
    for words in (b"", b'{"arguments": '):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as leaving:
            leaving.connect(str(server.socket))
            if words:
                leaving.send(words)
    left = python(server, "import time; time.sleep(0.2)")
    left._connection.close()
    assert python(server, "pass").wait(SECONDS) == 0


def test_a_fork_that_ends_its_process_group_ends_itself_alone(server: ForkServer) -> None:
    beside = python(server, "import time; time.sleep(600)")
    assert python(server, "import os; os.killpg(0, 9)").wait(SECONDS) == -signal.SIGKILL
    assert python(server, "pass").wait(SECONDS) == 0
    assert beside.poll() is None


@pytest.mark.waits
def test_everything_that_was_forked_ends_with_the_server(server: ForkServer) -> None:
    sleeping = python(server, "import time; time.sleep(600)")
    server.stop()
    deadline = time.monotonic() + SECONDS
    while psutil.pid_exists(sleeping.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(sleeping.pid)


def role(name: str, **changes: object) -> Role:
    return Role(name=name, count=1, cpus=0.5, factory="sys:path", imports="sys:path", **changes)


def test_only_roles_that_agree_and_have_no_gpus_are_forked() -> None:
    both = forked_environment([role("a", env={"X": "1"}), role("b", env={"Y": "2"})])
    assert both is not None
    assert (both["X"], both["Y"], both["OMP_NUM_THREADS"]) == ("1", "2", "1")
    assert forked_environment([role("a", env={"X": "1"}), role("b", env={"X": "2"})]) is None
    assert forked_environment([role("a"), role("b", gpus=1)]) is None
    assert forked_environment([role("a"), replace(role("b"), cpus=4)]) is None
