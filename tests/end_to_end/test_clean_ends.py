"""How a run ends when something is killed: a named cause, and nothing left behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.running import QUICKSTART, ROOT, SMALL, command, environment
from tests.pace import scaled

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

LONG = (*SMALL, "model.warmup=null", "trainer.updates=100000", "data.eval=null", "run.max_restarts=0")
ASCII = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
MARK = "RLHF_TEST_RUN"
START_SECONDS, END_SECONDS = scaled(150), scaled(10)


@contextmanager
def long_run(
    folder: Path, cache: Path, *overrides: str, terminal: int | None = None, ignored: Iterable[signal.Signals] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A run that is in the middle of training, with a mark in the environment of all its processes. It writes to a file
    or a terminal, whose locale has ASCII alone. A shell makes what it starts with `&` ignore Ctrl-C, nohup SIGHUP."""
    arguments = command("train", str(QUICKSTART), f"run.dir={folder}", f"model.cache_dir={cache}", *LONG, *overrides)
    output, before = folder.parent / "output.txt", updates(folder)
    with output.open("w") as file:
        stream = file if terminal is None else terminal
        process = subprocess.Popen(
            arguments, cwd=ROOT, env=environment() | (ASCII if terminal else {}) | {MARK: str(folder)}, stdout=stream,
            stderr=stream, text=True, start_new_session=True,
            preexec_fn=lambda: [  # also where the tests themselves run below nohup
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
                for number in (signal.SIGINT, signal.SIGHUP)
            ],
        )  # fmt: skip
    try:
        assert until(lambda: updates(folder) > before + 2 or process.poll() is not None, START_SECONDS)
        assert process.poll() is None, output.read_text()[-3000:]
        yield process
    finally:
        for left in marked(folder):
            left.kill()


def until(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def updates(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def marked(folder: Path) -> list[psutil.Process]:
    """Processes that carry this run's mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def worker_of(folder: Path, log: str) -> psutil.Process:
    """The worker whose output goes to `log`."""
    target = folder / "logs" / log
    for process in marked(folder):
        try:
            if os.path.realpath(f"/proc/{process.pid}/fd/1") == str(target):
                return process
        except OSError:
            continue
    raise AssertionError(f"no process writes {target}")


def test_a_killed_rank_is_named_with_its_cause_and_nothing_is_left(tmp_path: Path, cache: Path) -> None:
    folder, worker = tmp_path / "run", "learner-0"
    with long_run(folder, cache) as process:
        worker_of(folder, f"{worker}.log").kill()
        assert process.wait(timeout=scaled(60)) == 1
        assert until(lambda: not marked(folder), END_SECONDS)
    message = (tmp_path / "output.txt").read_text()
    assert f"error: {worker} died: killed by SIGKILL" in message
    assert json.loads((folder / "summary.json").read_text())["outcome"] == f"{worker} died: killed by SIGKILL"


@pytest.mark.parametrize(
    ("ending", "code", "outcome", "told"),
    [
        (signal.SIGINT, 75, "saved: Ctrl-C", "Ctrl-C: the run saves after this update and ends"),
        (signal.SIGTERM, 130, "stopped", "the run ended before its first checkpoint, so nothing is saved"),
    ],
    ids=["ctrl-c-in-the-background", "sigterm-in-the-background"],
)
def test_ctrl_c_saves_sigterm_ends_at_once_and_both_end_cleanly(
    tmp_path: Path, cache: Path, *, ending: signal.Signals, code: int, outcome: str, told: str
) -> None:
    folder = tmp_path / "run"
    with long_run(folder, cache, "cluster.kind=local", ignored=(signal.SIGINT,)) as process:
        os.killpg(process.pid, ending)
        assert process.wait(timeout=scaled(30)) == code
        assert until(lambda: not marked(folder), END_SECONDS)
    assert json.loads((folder / "summary.json").read_text())["outcome"] == outcome
    assert len(list((folder / "checkpoints").glob("version-*"))) == (code == 75)
    output = (tmp_path / "output.txt").read_text()
    assert told in output
    assert "Traceback" not in output


@pytest.mark.parametrize("nohup", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_whose_terminal_closes_saves_unless_it_runs_below_nohup(tmp_path: Path, cache: Path, nohup: bool) -> None:
    folder, ignored = tmp_path / "run", (signal.SIGHUP,) if nohup else ()
    terminal, its_end = pty.openpty()
    with long_run(folder, cache, "cluster.kind=local", terminal=its_end, ignored=ignored) as process:
        os.close(its_end)
        os.close(terminal)
        os.killpg(process.pid, signal.SIGHUP)
        if nohup:
            made = updates(folder)
            assert until(lambda: updates(folder) > made + 2, scaled(60)), "SIGHUP ended it"
            os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=scaled(90)) == 75
    assert "Input/output error): the run continues without it" in (folder / "logs" / "controller.log").read_text()
    assert json.loads((folder / "summary.json").read_text())["outcome"] == "saved: Ctrl-C"
    assert list((folder / "checkpoints").glob("version-*"))
