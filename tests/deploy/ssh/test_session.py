"""The two ends of a launch on this machine, without ssh: hello, orders, output, an end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from rlhf.deploy.ssh.hosts_file import SshHost
from rlhf.deploy.ssh.remote_command import RemoteCommand
from rlhf.deploy.ssh.session import LINE_BYTES, SshSession, connection
from rlhf.errors import HostError
from tests.pace import scaled

HERE = SshHost(name="localhost", cpus=3)


class Said:
    """What a session tells, by stream."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []


async def opened(shared: Path, said: Said) -> SshSession:
    words = connection(HERE, shared, user=None, config=None)
    return await SshSession.open(HERE, words, said.lines.append, said.errors.append)


def orders(folder: Path, program: str, **variables: str) -> RemoteCommand:
    return RemoteCommand(command=(sys.executable, "-c", program), folder=folder, environment=variables)


async def test_a_host_that_gets_no_command_ends_at_once(tmp_path: Path) -> None:
    session = await opened(tmp_path, Said())
    await session.ready()
    began = time.monotonic()
    await session.end(10)
    assert time.monotonic() - began < scaled(5)


async def test_a_command_runs_in_its_folder_with_its_variables_and_its_code_comes_back(tmp_path: Path) -> None:
    said = Said()
    session = await opened(tmp_path, said)
    has = await session.ready()
    assert (has.node, has.cpus) == ("localhost", 3), "its line in the hosts file goes before what it has"
    program = "import os, sys; print(os.getcwd(), os.environ['SECRET']); print(os.environ['PATH'].split(':')[0]); "
    program += "print('oh', file=sys.stderr); sys.exit(75)"
    session.order(orders(tmp_path, program, SECRET="x" * 20))
    assert await session.wait() == 75
    assert said.lines == [f"{tmp_path} {'x' * 20}", str(Path(sys.executable).parent)]
    assert said.errors == ["oh"]
    assert session.last_words in ("oh", said.lines[-1])
    await session.end(10)


@pytest.mark.waits
async def test_a_command_has_time_to_end_in_order(tmp_path: Path) -> None:
    session = await opened(tmp_path, Said())
    await session.ready()
    program = f"""
import pathlib, signal, sys, time
def end(*_):
    time.sleep(1)
    print("said to a connection that may be gone")
    pathlib.Path({str(tmp_path / "tidy")!r}).touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path({str(tmp_path / "running")!r}).touch()
time.sleep(60)
"""
    session.order(orders(tmp_path, program))
    while not (tmp_path / "running").exists():
        await asyncio.sleep(0.05)
    await session.end(20)
    assert (tmp_path / "tidy").exists()


@pytest.mark.waits
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_command_ends_when_its_far_end_is_killed(tmp_path: Path, number: int) -> None:
    session = await opened(tmp_path, Said())
    await session.ready()
    session.order(orders(tmp_path, "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        await asyncio.sleep(0.05)
    command = psutil.Process(int((tmp_path / "pid").read_text()))
    assert command.ppid() == session.pid
    os.kill(session.pid, number)
    await asyncio.to_thread(psutil.wait_procs, [command], timeout=scaled(10))
    assert not command.is_running() or command.status() == psutil.STATUS_ZOMBIE
    await session.end(10)


async def test_a_command_is_asked_to_save(tmp_path: Path) -> None:
    said = Said()
    session = await opened(tmp_path, said)
    await session.ready()
    program = "import signal; print('waits', flush=True); print(signal.sigwait({signal.SIGUSR1}).name, flush=True)"
    blocked = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n{program}"
    session.order(orders(tmp_path, blocked))
    while "waits" not in said.lines:
        await asyncio.sleep(0.05)
    session.save()
    assert await asyncio.wait_for(session.wait(), scaled(20)) == 0
    assert said.lines == ["waits", "SIGUSR1"]
    await session.end(10)


@pytest.mark.timeout(60)
async def test_a_megabyte_without_an_end_of_line_and_a_progress_bar_are_read_like_anything_else(tmp_path: Path) -> None:
    said = Said()
    session = await opened(tmp_path, said)
    await session.ready()
    program = f"""
import sys
for stream in (sys.stdout, sys.stderr):
    stream.write("x" * {3 * LINE_BYTES} + "\\n")
    stream.write("".join(f"{{n}} %\\r" for n in range(5)) + "\\r\\nthe end")
"""
    session.order(orders(tmp_path, program))
    assert await session.wait() == 0
    for lines in (said.lines, said.errors):
        pieces = [line for line in lines if line.startswith("x")]
        assert (sum(map(len, pieces)), "".join(pieces).strip("x")) == (3 * LINE_BYTES, "")
        assert lines[len(pieces) :] == ["0 %", "1 %", "2 %", "3 %", "4 %", "", "the end"]
    await session.end(10)


async def test_a_host_that_does_not_share_the_folder_is_named(tmp_path: Path) -> None:
    session = await opened(tmp_path / "elsewhere", Said())
    with pytest.raises(HostError, match=r"^localhost: it does not see the run's folder; hosts must share its file sys"):
        await session.ready()
    await session.end(10)
