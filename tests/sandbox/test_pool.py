"""Programs and their limits, on the strongest level of this machine; and the queue before them."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.errors import SandboxBroken, SandboxBusy, SandboxUnavailable
from rlhf.sandbox.isolation import Interpreter, IsolationLevel
from rlhf.sandbox.levels import ChosenIsolation, choose
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.sandbox.program import MIB, Program, SandboxLimits, TerminationReason
from rlhf.sandbox.run import run_program
from tests.sandbox.conftest import readable_python

pytestmark = pytest.mark.engine
LIMITS = SandboxLimits(wall_seconds=20, memory_bytes=128 * MIB, disk_bytes=8 * MIB, processes=16)


class Hidden(Interpreter):
    """A Python that the code may not read, and so not start."""

    @property
    def readable(self) -> tuple[str, ...]:
        return ()


@pytest.fixture(scope="module")
def chosen() -> ChosenIsolation:
    return choose()


@pytest.fixture
async def sandbox(chosen: ChosenIsolation) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(LIMITS, Queue(runs=2), chosen=chosen)
    yield sandbox
    await sandbox.close()


async def test_a_program_reads_its_input_and_files_and_hands_files_back(sandbox: Sandbox) -> None:
    code = "import helper, sys\nopen('out/answer', 'wb').write(helper.twice(sys.stdin.read()).encode())\nprint('done')"
    files = {"helper.py": b"def twice(text): return text * 2", "out/empty": b""}
    run = await sandbox.run(Program(code=code, stdin=b"ab", files=files, fetch=("out/answer", "out/none")))
    assert (run.ending, run.return_code, run.stdout, run.stderr) == (TerminationReason.EXITED, 0, "done\n", "")
    assert run.files == {"out/answer": b"abab"}


async def test_an_exit_code_a_signal_and_an_exception_are_told(sandbox: Sandbox) -> None:
    exits = await sandbox.run(Program(code="import sys; sys.exit(3)"))
    killed = await sandbox.run(Program(code="import os; os.abort()"))
    raised = await sandbox.run(Program(code="1 / 0"))
    assert (exits.return_code, killed.return_code, raised.return_code) == (3, -6, 1)
    assert raised.stderr.endswith("ZeroDivisionError: division by zero\n")


async def test_an_endless_loop_ends_when_its_time_is_over_and_its_output_is_kept(sandbox: Sandbox) -> None:
    run = await sandbox.run(Program(code="print('begun')\nwhile True: pass", wall_seconds=1.0))
    assert (run.ending, run.return_code, run.stdout) == (TerminationReason.TIME, None, "begun\n")
    assert run.detail == "killed after 1 s"


async def test_what_a_program_asks_for_is_bounded_by_what_the_sandbox_gives() -> None:
    asked = SandboxLimits(wall_seconds=1, memory_bytes=MIB).within(wall_seconds=60, memory_bytes=2 * MIB)
    assert asked == SandboxLimits(wall_seconds=1, memory_bytes=MIB)


async def test_input_larger_than_a_pipe_arrives_and_input_that_nobody_reads_does_not_block(sandbox: Sandbox) -> None:
    large = b"x" * (2 * MIB)
    read = await sandbox.run(Program(code="import sys; print(len(sys.stdin.read()))", stdin=large))
    unread = await sandbox.run(Program(code="import sys; sys.stdin.close(); print('left')", stdin=large))
    assert (read.stdout, unread.stdout) == (f"{2 * MIB}\n", "left\n")


@pytest.mark.parametrize("path", ["/etc/cron.d/evil", "../evil", "a/../../evil", ""])
async def test_files_outside_the_folder_are_refused(sandbox: Sandbox, path: str) -> None:
    run = await sandbox.run(Program(code="print('ran')", files={path: b"x"}))
    assert (run.ending, run.stdout) == (TerminationReason.REFUSED, "")
    assert "give a relative one" in run.detail


async def test_files_that_do_not_fit_are_refused(sandbox: Sandbox) -> None:
    run = await sandbox.run(Program(code="print('ran')", files={"large": bytes(9 * MIB)}))
    assert run.ending is TerminationReason.REFUSED
    assert "files cannot be written" in run.detail


async def test_a_program_that_cannot_start_within_its_limits_is_refused(sandbox: Sandbox) -> None:
    small = await sandbox.run(Program(code="print('ran')", memory_bytes=4096))
    assert (small.succeeded, small.stdout) == (False, "")  # the kernel may end it before Python does
    deep = await sandbox.run(Program(code="print('ran')", files={"a/" * 3000 + "x": b""}))
    assert deep.ending is TerminationReason.REFUSED


def test_a_python_that_cannot_be_started_is_the_failure_of_the_sandbox(chosen: ChosenIsolation) -> None:
    isolation = chosen.isolation
    python = Hidden(path=isolation.python.path, folders=())
    with pytest.raises(SandboxBroken, match="the code could not be started"):
        run_program(Program(code="1"), LIMITS, replace(isolation, level=IsolationLevel.LANDLOCK, python=python))


async def test_endless_output_is_cut(sandbox: Sandbox) -> None:
    run = await sandbox.run(Program(code="while True: print('x' * 1000)", wall_seconds=1.0))
    assert run.ending is TerminationReason.TIME
    assert MIB < len(run.stdout) < MIB + 100
    assert run.stdout.endswith(f"bytes after the first {MIB}]\n")


async def test_the_environment_has_no_secrets(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "secret")
    run = await sandbox.run(Program(code="import os; print(*os.environ)"))
    settings = {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "MALLOC_ARENA_MAX"}
    assert set(run.stdout.split()) <= {"PATH", "LANG", "LC_CTYPE", "HOME", "TMPDIR", "PWD"} | settings


async def test_two_runs_share_nothing(sandbox: Sandbox) -> None:
    code = "import os, time\nprint(os.listdir('.'))\nopen('mine', 'w')\ntime.sleep(0.3)"
    runs = await asyncio.gather(*(sandbox.run(Program(code=code)) for _ in range(6)))
    assert {run.stdout for run in runs} == {"['main.py']\n"}


async def test_a_place_comes_free_only_when_a_run_is_over_and_too_many_are_refused(chosen: ChosenIsolation) -> None:
    sandbox = Sandbox(LIMITS, Queue(runs=1, waiting=1, wait_seconds=0.5), chosen=chosen)
    nap = Program(code="import time; time.sleep(2)")
    first = asyncio.create_task(sandbox.run(nap))
    await asyncio.sleep(0)
    second = asyncio.create_task(sandbox.run(nap))
    await asyncio.sleep(0)
    with pytest.raises(SandboxBusy, match="1 programs are already waiting"):
        await sandbox.run(nap)
    first.cancel()  # the run goes on, and holds its place
    with pytest.raises(SandboxBusy, match=r"within 0.5 s"):
        await second
    await sandbox.close()


async def test_a_sandbox_that_cannot_start_a_program_says_so_and_gives_no_run() -> None:
    with pytest.raises(SandboxUnavailable, match="not a Python that can be started"):
        choose(python="/nonexistent/python")
    with pytest.raises(SandboxBroken, match="before its start"):
        await Sandbox().run(Program(code="1"))


PLACES = ["/tmp", "/var/tmp", "/dev/shm", "/run", str(Path.home()), "a name with spaces", "a link"]
IMPORTS = "import linked, own, tempfile; print(linked.HERE, own.HERE, tempfile.TemporaryFile().write(b'xx'))"


@pytest.fixture
def placed(request: pytest.FixtureRequest) -> Iterator[tuple[IsolationLevel, str]]:
    """A Python in a virtual environment at a place, with a package of its own and a link to another, for a level. On
    `bubblewrap` other users may not enter its folder."""
    level, place = request.param
    folder = Path(place if place.startswith("/") else tempfile.gettempdir())
    if not os.access(folder, os.W_OK):
        pytest.skip(f"this user may not write to {folder}")
    with tempfile.TemporaryDirectory(dir=folder, suffix=" x y") as made, tempfile.TemporaryDirectory() as elsewhere:
        lies = Path(made) / "environment"
        python = sys.executable if level is IsolationLevel.BUBBLEWRAP else readable_python()
        subprocess.run([python, "-m", "venv", "--without-pip", lies], check=True)
        packages = next(lies.glob("lib/python*/site-packages"))
        (packages / "own.py").write_text("HERE = 'own'")
        (Path(elsewhere) / "linked.py").write_text("HERE = 'linked'")
        (packages / "linked.py").symlink_to(Path(elsewhere) / "linked.py")
        for closed in (made, elsewhere, lies):
            os.chmod(closed, 0o700 if level is IsolationLevel.BUBBLEWRAP else 0o755)
        (Path(made) / "link").symlink_to(lies)
        yield level, str(Path(made) / ("link" if place == "a link" else "environment") / "bin" / "python")


@pytest.mark.parametrize("placed", itertools.product(IsolationLevel, PLACES), indirect=True, ids="-".join)
def test_a_python_is_readable_where_it_lies_with_its_packages(placed: tuple[IsolationLevel, str]) -> None:
    level, python = placed
    closed = os.geteuid() == 0 and not all(folder.stat().st_mode & 0o001 for folder in Path(python).parents)
    if closed and level is not IsolationLevel.BUBBLEWRAP:
        with pytest.raises(SandboxUnavailable, match=f"Permission denied: '{python}'"):
            choose(python=python, levels=(level,))
        return
    run = run_program(Program(code=IMPORTS), LIMITS, choose(python=python, levels=(level,)).isolation)
    assert (run.stdout, run.stderr) == ("linked own 2\n", "")


def test_no_isolation_means_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxUnavailable, match=r"no isolation works on this machine.*bwrap is not installed"):
        choose(levels=(IsolationLevel.BUBBLEWRAP,))


def test_resource_limits_alone_are_taken_only_when_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    chosen = choose(levels=(IsolationLevel.BUBBLEWRAP,), allow_rlimits=True)
    assert chosen.isolation.level is IsolationLevel.RLIMITS
    assert "not bubblewrap" in str(chosen)
