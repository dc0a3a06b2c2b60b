"""What the end of a supervised program looks like from outside, without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.pace import scaled

ROOT = Path(__file__).parents[2]


def supervised(body: str) -> subprocess.CompletedProcess[str]:
    """Run `body` as a supervised `main` in a Python of its own."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    imports = "import os, signal, sys, tempfile\nfrom rlhf.cluster.supervisor import supervise\n"
    program = f"{imports}def main():\n{lines}\nsys.exit(supervise(main))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=scaled(20)
    )


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return 0", 0),
        ("return 2", 2),
        ("sys.exit(3)", 3),
        ("sys.exit('no')", 1),
        ("raise KeyboardInterrupt", 130),
        ("raise ValueError('odd')", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143),
    ],
)
def test_the_exit_code_is_the_programs(body: str, code: int) -> None:
    assert supervised(body).returncode == code


def test_a_program_killed_by_a_signal_is_named_once() -> None:
    said = supervised("os.kill(os.getpid(), signal.SIGSEGV)").stderr
    assert said == "rlhf: the controller was killed by SIGSEGV\n"


def test_what_the_program_prints_arrives_and_its_temporary_files_go() -> None:
    ended = supervised("print(tempfile.mkdtemp())\nreturn 0")
    folder = Path(ended.stdout.strip())
    assert folder.name.startswith("tmp")
    assert folder.parent != Path(tempfile.gettempdir())
    assert not folder.parent.exists()


def test_a_word_to_the_program_reaches_it_and_ends_nothing() -> None:
    body = """
import time
heard = []
signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
os.kill(os.getppid(), signal.SIGUSR1)
deadline = time.monotonic() + 10
while not heard and time.monotonic() < deadline:
    time.sleep(0.01)
return 75 if heard else 1"""
    assert supervised(body).returncode == 75


@pytest.mark.waits
def test_a_guard_that_was_stopped_goes_on_as_before() -> None:
    """As a suspended machine or Ctrl-Z does: CPython's sigtimedwait then returns what was never filled in."""
    body = """
import time
os.kill(os.getppid(), signal.SIGSTOP)
time.sleep(1)
os.kill(os.getppid(), signal.SIGCONT)
time.sleep(0.2)
return 5"""
    assert supervised(body).returncode == 5


@pytest.mark.waits
def test_after_sigkill_of_the_guard_the_program_ends_in_order_and_takes_its_daemon_with_it(tmp_path: Path) -> None:
    body = """
import subprocess, time
subprocess.Popen(["sh", "-c", "sleep 300 & echo $!"], stdout=open("daemon", "w"))
while not open("daemon").read().strip(): time.sleep(0.01)
try:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
finally:
    open("ended", "w").close()"""
    assert supervised(f"os.chdir({str(tmp_path)!r})\n{body}").returncode == -signal.SIGKILL
    daemon, deadline = int((tmp_path / "daemon").read_text()), time.monotonic() + scaled(10)
    while psutil.pid_exists(daemon) and psutil.Process(daemon).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(("saves", "presses", "code"), [(True, 1, 75), (True, 2, 137), (False, 1, 137)])
def test_a_program_that_saves_at_the_first_ctrl_c_has_a_deadline_from_the_second_on(
    saves: bool, presses: int, code: int
) -> None:
    program = f"""
import os, signal, sys, time
from rlhf.cluster import supervisor
supervisor.GRACE_SECONDS = supervisor.TICK_SECONDS = supervisor.ECHO_SECONDS = 0.1

def main(pulse):
    signal.signal(signal.SIGINT, lambda number, frame: None)
    for _ in range({presses}):
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(1.5)
    return 75

sys.exit(supervisor.supervise_starts(main, lambda ended: None, saves_at_ctrl_c={saves}))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, timeout=scaled(20))
    assert ended.returncode == code


STARTS = """
import os, signal, sys, time
from rlhf.cluster import stacks, supervisor
supervisor.BEAT_SECONDS = supervisor.TICK_SECONDS = 0.05
stacks.WRITE_SECONDS = 0.3

def program(number):
    def run(pulse):
        import asyncio
        async def work():
            beating = asyncio.create_task(pulse.beat())
            await asyncio.sleep(0.2)
            {fails}
            beating.cancel()
        if number < 3:
            asyncio.run(work())
        print("program", number, flush=True)
        return 4 + number
    return run

def start_after(ended):
    print(ended.code, ended.began, ended.cause, flush=True)
    starts.append(ended)
    return program(len(starts)) if ended.cause else None

starts = []
sys.exit(supervisor.supervise_starts(program(0), start_after, silence_seconds=0.5))
"""


def started_again(fails: str) -> tuple[int, list[str], str]:
    """The exit code of three failures and what follows, what was printed of each, and to standard error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", STARTS.replace("{fails}", fails)], env=environment, capture_output=True, text=True,
        timeout=scaled(60),
    )  # fmt: skip
    return ended.returncode, ended.stdout.splitlines(), ended.stderr


@pytest.mark.waits
@pytest.mark.parametrize(
    ("fails", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "137 True the controller was killed by SIGKILL"),
        ("pulse.fail('a rank\\n died'); os._exit(1)", "1 True a rank died"),
        (
            "os.kill(os.getpid(), signal.SIGSTOP)",
            "137 True the controller was stopped by a signal and did not beat for",
        ),
        (
            "stacks.write_stacks_when_asked(sys.stderr); time.sleep(60)",
            "137 True the controller is blocked and did not beat for",
        ),
    ],
    ids=["killed", "failed", "stopped", "blocked"],
)
def test_a_program_is_started_again_while_its_failures_can_be_mended(fails: str, told: str) -> None:
    code, printed, stacks = started_again(fails)
    assert all(line.startswith(told) for line in printed[:3]), printed
    assert (code, printed[3:]) == (7, ["program 3", "7 False None"])
    assert stacks.count("in work") == 3 * ("write_stacks" in fails)


@pytest.mark.waits
def test_a_failure_without_a_cause_and_one_that_follows_a_stop_signal_have_no_cause() -> None:
    assert started_again("os._exit(1)")[:2] == (1, ["1 True None"])
    stop = "signal.signal(signal.SIGTERM, lambda *_: None); os.kill(os.getppid(), signal.SIGTERM)"
    assert started_again(f"{stop}; await asyncio.sleep(0.2); pulse.fail('it'); os._exit(1)")[:2] == (1, ["1 True None"])
