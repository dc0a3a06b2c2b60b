"""A program with two users: its processes may part, and all of them end."""

from __future__ import annotations

import pytest

from rlhf.sandbox.program import Program
from rlhf.sandbox.wire import RunCodeRequest, program_of, request_of
from tests.attacks.sandboxes import SandboxOf
from tests.sandbox.conftest import LEVELS, USERS, readable_python

PARTED = """
import os, sys, time
real, effective, saved = os.getresuid()
if os.fork() == 0:
    os.setresuid(effective, effective, effective)
    parent = os.getppid()
    time.sleep(0.3)
    for name, attempt in {
        "signal": lambda: os.kill(parent, 0),
        "memory": lambda: open(f"/proc/{parent}/mem", "rb"),
        "user": lambda: os.setresuid(real, real, real),
        "root": lambda: os.setresuid(0, 0, 0),
    }.items():
        try:
            attempt()
            print(name, flush=True)
        except OSError:
            pass
    os._exit(0)
os.setresuid(real, real, real)
time.sleep(0.6)
try:
    open("mine", "w")
    print("folder", flush=True)
except OSError:
    pass
print("users", 1 + (real != effective), flush=True)
if os.fork() == 0:
    time.sleep(1000)
"""


@pytest.mark.engine
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("user", USERS)
async def test_the_users_of_a_program_cannot_touch_one_another_and_nothing_of_either_stays(
    level: str, user: str
) -> None:
    sandbox = SandboxOf(level, user, readable_python())
    run = await sandbox.run(Program(code=PARTED, two_users=True, memory_bytes=128 << 20))
    assert (run.return_code, run.stderr) == (0, "")
    if user == "root":
        assert run.stdout == "users 2\n"
    else:
        assert run.stdout.splitlines()[-1] == "users 1"
        assert "root" not in run.stdout.split()
    await sandbox.close()


def test_the_wish_for_two_users_travels_to_our_server_and_only_where_there_is_one() -> None:
    asked = request_of(Program(code="1", two_users=True))
    assert program_of(RunCodeRequest.model_validate(asked)).two_users
    assert "two_users" not in request_of(Program(code="1"))
