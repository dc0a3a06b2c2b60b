"""A jail: one level, entered as one user, and whatever it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pace import scaled

ROOT = Path(__file__).parents[2]
NOBODY = 65534
AS_ROOT = os.geteuid() == 0
USERS = ["root", "nobody"] if AS_ROOT else ["this user"]
LEVELS = ["bubblewrap", "landlock"]
MIB = 1024 * 1024
LIMITS = {"wall_seconds": 10.0, "memory_bytes": 128 * MIB, "disk_bytes": 8 * MIB, "processes": 16, "files": 500}


def readable_python() -> str:
    """A Python that any user can start: this one, or the system's."""
    own = Path(os.path.realpath(sys.executable))
    open_to_all = all(folder.stat().st_mode & 0o001 for folder in own.parents)
    return str(own) if open_to_all else "/usr/bin/python3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jail:
    """Runs code on a level as a user. `marker` in a command line tells what the code started from everything else."""

    level: str
    user: str
    scratch: Path
    marker: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def identity(self) -> dict[str, Any]:
        return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if self.user == "nobody" else {}

    def run(
        self,
        code: str,
        fetch: tuple[str, ...] = (),
        *,
        bounded: bool = True,
        entered: Callable[[int], None] = lambda process: None,
        **limits: float,
    ) -> dict[str, Any]:
        """What became of `code`. `bounded`: with control groups and a file system of its own, where this user can;
        `entered` is told the process that runs it, before it does."""
        runner = self.begin()
        entered(runner.pid)
        asked = {"level": self.level, "code": code, "python": readable_python(), "limits": LIMITS | limits}
        told, complaint = runner.communicate(
            json.dumps(asked | {"fetch": fetch, "bounded": bounded}), timeout=scaled(100)
        )
        assert runner.returncode == 0, complaint
        answer: dict[str, Any] = json.loads(told)
        return answer

    def begin(self) -> subprocess.Popen[str]:
        """A process of the jail's user that runs what it is asked to on standard input."""
        return subprocess.Popen(
            [readable_python(), "-m", "tests.sandbox.one_run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "TMPDIR": str(self.scratch)},
            **self.identity,
        )

    def bystander(self) -> subprocess.Popen[bytes]:
        """A process of the user who started the sandbox."""
        sleeper = [readable_python(), "-c", "import time; time.sleep(60)"]
        return subprocess.Popen(sleeper, env={"SECRET": "a-secret"}, **self.identity)

    def left_behind(self) -> list[str]:
        """Files, and processes that carry the marker."""
        processes = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
        return [*map(str, self.scratch.iterdir()), *(line for line in processes if self.marker in line)]


@pytest.fixture(params=USERS)
def user(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LEVELS)
def jail(request: pytest.FixtureRequest, user: str) -> Iterator[Jail]:
    scratch = Path(tempfile.mkdtemp(prefix="rlhf-test-"))
    scratch.chmod(0o711)
    if user == "nobody":
        os.chown(scratch, NOBODY, NOBODY)
    jail = Jail(level=request.param, user=user, scratch=scratch)
    yield jail
    left = jail.left_behind()
    shutil.rmtree(scratch)
    assert left == []
