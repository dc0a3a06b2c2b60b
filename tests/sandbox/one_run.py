"""Runs one program on one level, for tests that need another user: `python one_run.py`, request and answer in JSON.

Only the standard library and the sandbox's own core are imported, so that the system's Python will do.
"""

from __future__ import annotations

import json
import os
import sys

from rlhf.sandbox.groups import NoGroups, Parents, find_parents
from rlhf.sandbox.isolation import IsolationLevel, SandboxIsolation
from rlhf.sandbox.limits import SandboxLimits
from rlhf.sandbox.program import Program
from rlhf.sandbox.python import interpreter
from rlhf.sandbox.run import run_program


def main() -> None:
    asked = json.load(sys.stdin)
    isolation = SandboxIsolation(
        level=IsolationLevel(asked["level"]),
        python=interpreter(asked["python"]),
        groups=_groups() if asked["bounded"] else None,
        own_disk=asked["bounded"] and os.geteuid() == 0 and asked["level"] == IsolationLevel.LANDLOCK,
    )
    program = Program(code=asked["code"], fetch=tuple(asked["fetch"]), wall_seconds=asked["limits"]["wall_seconds"])
    became = run_program(program, SandboxLimits(**asked["limits"]), isolation)
    answer = {"ending": became.ending, "return_code": became.return_code, "detail": became.detail}
    json.dump(answer | {"stdout": became.stdout, "stderr": became.stderr, "fetched": list(became.files)}, sys.stdout)


def _groups() -> Parents | None:
    try:
        return find_parents()
    except NoGroups:
        return None


if __name__ == "__main__":
    main()
