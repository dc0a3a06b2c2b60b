"""However a supervised run with a real Ray ends, nothing of it is left: no process, shared memory, port or folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.pace import scaled

pytestmark = pytest.mark.engine

LITTERING = Path(__file__).parent / "clean_end_program.py"
START_SECONDS, CLEAN_SECONDS = scaled(90.0), scaled(10.0)
GUARD, PROGRAM = range(2)


@dataclass(frozen=True, slots=True)
class Running:
    """A program that has littered, and all that was seen of it then."""

    program: subprocess.Popen[str]
    pids: tuple[int, ...]
    processes: tuple[psutil.Process, ...]
    ports: frozenset[int]
    memory: Path
    mark: str
    temp: Path

    def leftovers(self) -> list[str]:
        """Everything of the program that is there now."""
        processes = [f"process {process.pid}" for process in self.processes if _runs(process)]
        processes += [f"marked {pid}" for pid in _marked(self.mark)]
        held = [each for each in psutil.net_connections("tcp") if not _is_of_others(each.pid, self.mark)]
        ports = [f"port {port}" for port in self.ports & _listening(held)]
        files = [str(path) for path in (self.memory, *self.temp.iterdir()) if path.exists()]
        return processes + ports + files


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    mark = f"mark-{uuid.uuid4().hex[:8]}"
    temp = Path("/tmp") / mark[-8:]
    temp.mkdir()
    environment = {**os.environ, "RLHF_TEST_MARK": mark, "TMPDIR": str(temp), "PYTHONPATH": str(LITTERING.parents[2])}
    command = [sys.executable, str(LITTERING), str(tmp_path), f"psm_{mark}"]
    program = subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE, start_new_session=True)
    try:
        _wait(lambda: (tmp_path / "ready").exists(), START_SECONDS)
        yield _observe(program, tmp_path, mark, temp)
    finally:
        for pid in _marked(mark):
            os.kill(pid, signal.SIGKILL)
        program.wait(scaled(10))
        shutil.rmtree(temp)


@pytest.mark.parametrize("who", [GUARD, PROGRAM], ids=["guard", "program"])
def test_after_sigkill_of_guard_or_program_nothing_is_left(running: Running, who: int) -> None:
    os.kill(running.pids[who], signal.SIGKILL)
    _wait(lambda: not running.leftovers(), CLEAN_SECONDS, running.leftovers)
    assert running.program.wait(1) == (-signal.SIGKILL if who == GUARD else 128 + signal.SIGKILL)
    if who == PROGRAM:
        assert "the controller was killed by SIGKILL" in running.program.communicate()[1]


def test_ctrl_c_to_the_guard_alone_ends_with_130_in_bounded_time_and_nothing_is_left(running: Running) -> None:
    os.kill(running.program.pid, signal.SIGINT)
    assert running.program.wait(scaled(25)) == 130
    _wait(lambda: not running.leftovers(), 1, running.leftovers)


def _observe(program: subprocess.Popen[str], folder: Path, mark: str, temp: Path) -> Running:
    pids = tuple(int(pid) for pid in (folder / "ready").read_text().split())
    processes = (psutil.Process(program.pid), *psutil.Process(program.pid).children(recursive=True))
    ports = frozenset().union(*(_ports(process) for process in processes))
    running = Running(program, pids, processes, ports, Path("/dev/shm") / f"psm_{mark}", mark, temp)
    assert ports, "Ray listens"
    assert running.memory.exists()
    assert any(_name(process) == "sleep" for process in processes), "the daemon is adopted by the supervisor"
    return running


def _wait(done: Callable[[], bool], seconds: float, say: Callable[[], object] = lambda: "it did not happen") -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, say()
        time.sleep(0.1)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _ports(process: psutil.Process) -> frozenset[int]:
    try:
        return _listening(process.net_connections("tcp"))
    except psutil.NoSuchProcess:
        return frozenset()


def _listening(connections: list[object]) -> frozenset[int]:
    return frozenset(c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN)  # type: ignore[attr-defined]


def _is_of_others(pid: int | None, mark: str) -> bool:
    """Whether a process without the mark holds it: Ray of a test beside takes a port (52365) as soon as it is free."""
    return pid is not None and mark.encode() not in _read(Path(f"/proc/{pid}/environ"))


def _marked(mark: str) -> list[int]:
    """Processes whose environment at their start held the mark; zombies have none."""
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark.encode() in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
