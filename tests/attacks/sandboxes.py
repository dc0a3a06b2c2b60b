"""A sandbox on one level, entered as one user: a process of that user runs what it is sent, a line each way."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rlhf.sandbox.isolation import IsolationLevel, SandboxIsolation
from rlhf.sandbox.limits import SandboxLimits
from rlhf.sandbox.program import Program, ProgramResult, TerminationReason
from rlhf.sandbox.python import interpreter
from rlhf.sandbox.run import run_program

NOBODY = 65534
ROOT = Path(__file__).parents[2]


class SandboxOf:
    """A `Runner` on `level` as `user` ("root", "nobody" or "this user"), one run at a time."""

    def __init__(self, level: str, user: str, python: str) -> None:
        identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if user == "nobody" else {}
        self._scratch = tempfile.mkdtemp(prefix="rlhf-attack-")
        os.chmod(self._scratch, 0o777)
        self._process = subprocess.Popen(
            [python, "-m", "tests.attacks.sandboxes", level, python],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "TMPDIR": self._scratch},
            **identity,
        )
        self._one_at_a_time = asyncio.Lock()

    async def start(self) -> None: ...

    async def run(self, program: Program) -> ProgramResult:
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._ask, program)

    async def close(self) -> None:
        """End the process. Raises `AssertionError` where a run left files."""
        self._process.communicate(timeout=60)
        left = os.listdir(self._scratch)
        assert left == [], left
        os.rmdir(self._scratch)

    def _ask(self, program: Program) -> ProgramResult:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {
            "code": program.code,
            "stdin": base64.b64encode(program.stdin).decode(),
            "wall_seconds": program.wall_seconds,
            "memory_bytes": program.memory_bytes,
            "two_users": program.two_users,
        }
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        told = json.loads(self._process.stdout.readline())
        return ProgramResult(**(told | {"ending": TerminationReason(told["ending"])}))


def main(level: str, python: str) -> None:
    """Run each program that is asked for, until there is none."""
    isolation = SandboxIsolation(level=IsolationLevel(level), python=interpreter(python))
    for line in sys.stdin:
        asked = json.loads(line)
        program = Program(**(asked | {"stdin": base64.b64decode(asked["stdin"])}))
        became = run_program(program, SandboxLimits(memory_bytes=program.memory_bytes), isolation)
        told = {
            name: getattr(became, name) for name in ("ending", "return_code", "stdout", "stderr", "seconds", "detail")
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
