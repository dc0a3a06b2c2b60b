"""A sandbox on one level, entered as one user: a process of that user runs what it is sent, a line each way."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import SkipTest  # the system's Python, which runs `main`, has no pytest

from rlhf.sandbox.groups import find_group_parent
from rlhf.sandbox.isolation import IsolationLevel, SandboxIsolation, interpreter
from rlhf.sandbox.levels import probe
from rlhf.sandbox.program import Program, ProgramResult, SandboxLimits, TerminationReason
from rlhf.sandbox.run import run_program

NOBODY = 65534
ROOT = Path(__file__).parents[2]


class SandboxOf:
    """A `ProgramRunner` on `level` as `user` ("root", "nobody" or "this user"), one run at a time.

    Raises `SkipTest` where the machine lacks either."""

    def __init__(self, level: str, user: str, python: str) -> None:
        self.level, self.user = level, user
        self.identity: dict[str, Any] = (
            {"user": NOBODY, "group": NOBODY, "extra_groups": []} if user == "nobody" else {}
        )
        closed = [folder for folder in (ROOT, *ROOT.parents) if not folder.stat().st_mode & stat.S_IXOTH]
        if closed and user == "nobody":
            raise SkipTest(f"other users may not enter {closed[0]}, in which the checkout is")
        self.scratch = tempfile.mkdtemp(prefix="rlhf-attack-")
        os.chmod(self.scratch, 0o777)
        self.process = subprocess.Popen(
            [python, "-m", "tests.attacks.sandboxes", level, python],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "TMPDIR": self.scratch},
            **self.identity,
        )
        assert self.process.stdout is not None
        self.grouped = self.process.stdout.readline() == "groups\n"
        if refused := self.process.stdout.readline().strip():
            self.end()
            raise SkipTest(f"{level} as {user} does not work here: {refused}")
        self._one_at_a_time = asyncio.Lock()

    async def start(self) -> None: ...

    async def run(self, program: Program) -> ProgramResult:
        async with self._one_at_a_time:
            return await asyncio.to_thread(self.ask, program, SandboxLimits(memory_bytes=program.memory_bytes))

    async def close(self) -> None:
        self.end()

    def ask(self, program: Program, limits: SandboxLimits) -> ProgramResult:
        """Run `program` within `limits` and wait for its result."""
        self.send(program, limits)
        assert self.process.stdout is not None
        fields = json.loads(self.process.stdout.readline())
        files = {path: base64.b64decode(content) for path, content in fields.pop("files").items()}
        return ProgramResult(**(fields | {"ending": TerminationReason(fields["ending"]), "files": files}))

    def send(self, program: Program, limits: SandboxLimits) -> None:
        """Ask for `program`, and do not wait."""
        assert self.process.stdin is not None
        files = {path: base64.b64encode(content).decode() for path, content in program.files.items()}
        fields = program._asdict() | {"files": files, "limits": limits._asdict()}
        request = fields | {"stdin": base64.b64encode(program.stdin).decode()}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def left(self) -> list[str]:
        """The files that runs left behind."""
        return os.listdir(self.scratch)

    def end(self) -> None:
        """End the process. Raises `AssertionError` where a run left files."""
        self.process.communicate(timeout=60)
        left = self.left()
        assert left == [], left
        os.rmdir(self.scratch)


def main(level: str, python: str) -> None:
    """Run each program of standard input, with every limit that the kernel keeps for this user."""
    disk = level == IsolationLevel.LANDLOCK and os.geteuid() == 0
    isolation = SandboxIsolation(
        level=IsolationLevel(level), python=interpreter(python), groups=find_group_parent()[0], own_disk=disk
    )
    print("groups" if isolation.groups else "no groups", probe(isolation).replace("\n", " "), sep="\n", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        limits = SandboxLimits(**request.pop("limits"))
        files = {path: base64.b64decode(content) for path, content in request["files"].items()}
        program = Program(**(request | {"stdin": base64.b64decode(request["stdin"]), "files": files}))
        fields = run_program(program, limits, isolation)._asdict()
        found = {path: base64.b64encode(content).decode() for path, content in fields["files"].items()}
        print(json.dumps(fields | {"files": found}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
