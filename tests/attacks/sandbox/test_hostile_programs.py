"""Hostile code ends as the table says: it is never a failure of the sandbox, exceeds no limit, and leaves nothing."""

from __future__ import annotations

import signal

import pytest

from rlhf.sandbox.program import Program
from tests.attacks.sandbox.hostile_programs import DELETED_FILES, PROGRAMS
from tests.sandbox.conftest import LIMITS, Jail, jail, shared_jail, wait_until

__all__ = ["jail", "shared_jail"]
pytestmark = pytest.mark.engine
QUICK = (
    "folders too deep for a path",
    "descriptors that it inherited",
    "fetched: a link outside",
    "daemons that fork without end",
    "too much: one large object",
    "too much: many files",
    "too much: files without a name",
    "too much: forks",
)
MANY = [name for name in PROGRAMS if name not in QUICK]


def check(jail: Jail, name: str) -> None:
    program = PROGRAMS[name]
    if name.removeprefix("too much: ") in DELETED_FILES and not (jail.user == "root" or jail.level == "bubblewrap"):
        return  # only a file system of its own size counts them
    run = jail.try_out(program.code, fetch=program.fetch, wall_seconds=2.0 if "time" in program.endings else 10.0)
    assert run.ending in program.endings, (name, run)
    assert program.said in (None, run.stdout), (name, run)
    assert "exceeded" not in run.stdout or run.ending == "excess", (name, run)
    if name.startswith("fetched: ") and name not in ("fetched: a hole of a file", "fetched: without rights"):
        assert run.files == {}, (name, run)


def test_a_few_hostile_programs_end_as_they_must(jail: Jail) -> None:
    for name in QUICK:
        check(jail, name)


@pytest.mark.attack
@pytest.mark.parametrize("name", MANY)
def test_every_hostile_program_ends_as_it_must(jail: Jail, name: str) -> None:
    check(jail, name)


DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)  # MARKER"])
    os._exit(0)
os.wait()
time.sleep({seconds})
"""


def test_a_deaf_daemon_does_not_outlive_its_run(jail: Jail) -> None:
    code = DAEMON.format(seconds=0).replace("MARKER", jail.marker)
    assert jail.try_out(code).return_code == 0
    assert jail.left_behind() == []


def test_nothing_outlives_a_service_that_is_killed(shared_jail: Jail) -> None:
    service = Jail(shared_jail.level, shared_jail.user)
    code = DAEMON.format(seconds=8).replace("MARKER", service.marker)
    service.send(Program(code=code), LIMITS)
    wait_until(lambda: any(service.marker in line for line in service.left_behind()), "the daemon")
    service.process.send_signal(signal.SIGKILL)
    service.process.wait(10)
    wait_until(lambda: service.left_behind() == [], "the end of all")
    service.end()


HOARD = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        hoard = bytearray(b"x") * (60 << 20)
        time.sleep(1)
        os._exit(0)
for _ in range(4):
    os.wait()
"""


@pytest.mark.attack
def test_memory_of_all_processes_together_is_bounded_where_there_are_groups(jail: Jail) -> None:
    run = jail.try_out(HOARD)
    if jail.grouped:
        assert (run.ending, run.detail) == ("excess", "killed for using more than 128 MiB of memory")
    else:
        assert (run.ending, run.return_code) == ("exited", 0)
