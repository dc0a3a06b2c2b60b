"""A jail: one level, entered as one user, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rlhf.sandbox.program import MIB, Program, ProgramResult, SandboxLimits
from tests.attacks.sandboxes import SandboxOf
from tests.pace import scaled

USERS = ["root", "nobody"] if os.geteuid() == 0 else ["this user"]
LEVELS = ["bubblewrap", "landlock"]
LIMITS = SandboxLimits(wall_seconds=10.0, memory_bytes=128 * MIB, disk_bytes=8 * MIB, processes=16, files=500)


def readable_python() -> str:
    """A Python that any user can start: this one, or the system's."""
    own = Path(os.path.realpath(sys.executable))
    open_to_all = all(folder.stat().st_mode & 0o001 for folder in own.parents)
    return str(own) if open_to_all else "/usr/bin/python3"


class Jail(SandboxOf):
    """Runs code on a level as a user. `marker` in a command line tells the processes of its runs from all others."""

    def __init__(self, level: str, user: str) -> None:
        super().__init__(level, user, readable_python())
        self.marker = uuid.uuid4().hex

    def try_out(self, code: str, fetch: tuple[str, ...] = (), **limits: float) -> ProgramResult:
        """The result of `code`."""
        within = LIMITS._replace(**limits)  # type: ignore[arg-type]
        return self.ask(Program(code=code, fetch=fetch, wall_seconds=within.wall_seconds), within)

    def bystander(self) -> subprocess.Popen[bytes]:
        """A process of the user who started the sandbox."""
        sleeper = [readable_python(), "-c", "import time; time.sleep(60)"]
        return subprocess.Popen(sleeper, env={"SECRET": "a-secret"}, **self.identity)

    def left_behind(self) -> list[str]:
        """Files, and processes that carry the marker."""
        processes = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
        return [*self.left(), *(line for line in processes if self.marker in line)]


def wait_until(true: Callable[[], bool], awaited: str) -> None:
    deadline = time.monotonic() + scaled(20)
    while not true():
        assert time.monotonic() < deadline, f"{awaited} did not come"
        time.sleep(0.05)


@pytest.fixture(scope="module", params=[(level, user) for level in LEVELS for user in USERS], ids="-".join)
def shared_jail(request: pytest.FixtureRequest) -> Iterator[Jail]:
    jail = Jail(*request.param)
    yield jail
    jail.end()


@pytest.fixture
def jail(shared_jail: Jail) -> Iterator[Jail]:
    """Each test finds that its runs leave nothing behind."""
    yield shared_jail
    assert shared_jail.left_behind() == []
