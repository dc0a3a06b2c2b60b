"""How a run ends when something is killed: a named cause, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.running import QUICKSTART, ROOT, SMALL, command, environment
from tests.pace import scaled

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

LONG = (*SMALL, "model.warmup=null", "trainer.updates=100000", "data.eval=null")
MARK = "RLHF_TEST_RUN"
STARTED = re.compile(r"^update +3/", re.MULTILINE)
START_SECONDS, END_SECONDS = scaled(150), scaled(10)


@contextmanager
def long_run(
    folder: Path, cache: Path, *overrides: str, in_background: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A run that is in the middle of training, with a mark in the environment of all its processes. A shell makes what
    it starts with `&` ignore Ctrl-C."""
    arguments = command("train", str(QUICKSTART), f"run.dir={folder}", f"model.cache_dir={cache}", *LONG, *overrides)
    output = folder.parent / "output.txt"
    with output.open("w") as stream:
        process = subprocess.Popen(
            arguments, cwd=ROOT, env=environment() | {MARK: str(folder)}, stdout=stream, stderr=stream, text=True,
            start_new_session=True, preexec_fn=ignore_ctrl_c if in_background else None,
        )  # fmt: skip
    try:
        assert until(lambda: STARTED.search(output.read_text()) or process.poll() is not None, START_SECONDS)
        assert process.poll() is None, output.read_text()[-3000:]
        yield process
    finally:
        for left in marked(folder):
            left.kill()


def ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def until(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


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


@pytest.mark.parametrize("worker", ["engine-0", "learner-0"])
def test_a_killed_worker_is_named_with_its_cause_and_nothing_is_left(tmp_path: Path, cache: Path, worker: str) -> None:
    folder = tmp_path / "run"
    with long_run(folder, cache) as process:
        worker_of(folder, f"{worker}.log").kill()
        assert process.wait(timeout=scaled(60)) == 1
        assert until(lambda: not marked(folder), END_SECONDS)
    message = (tmp_path / "output.txt").read_text()
    assert f"error: {worker} died: killed by SIGKILL" in message
    assert json.loads((folder / "summary.json").read_text())["outcome"] == f"{worker} died: killed by SIGKILL"


def test_after_sigkill_of_the_controller_nothing_is_left(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "run"
    with long_run(folder, cache) as process:
        segments = {segment for left in marked(folder) for segment in shared_memory(left)}
        ports = {connection.laddr.port for left in marked(folder) for connection in listening(left)}
        assert ports, "Ray listens while it runs"
        process.kill()
        assert until(lambda: not marked(folder), END_SECONDS), marked(folder)
        assert until(lambda: not any(segment.exists() for segment in segments), END_SECONDS)
        open_ports = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        assert not ports & open_ports


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_cleanly_and_keep_what_was_done(
    tmp_path: Path, cache: Path, ending: signal.Signals
) -> None:
    folder = tmp_path / "run"
    with long_run(folder, cache, "cluster.kind=local") as process:
        os.killpg(process.pid, ending)
        assert process.wait(timeout=scaled(30)) == 130
        assert until(lambda: not marked(folder), END_SECONDS)
    assert '"outcome": "stopped"' in (folder / "summary.json").read_text()
    assert "Traceback" not in (tmp_path / "output.txt").read_text()


def test_what_a_script_started_in_the_background_ends_cleanly_at_sigterm(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "run"
    with long_run(folder, cache, "cluster.kind=local", in_background=True) as process:
        process.terminate()
        assert process.wait(timeout=scaled(30)) == 130
    assert '"outcome": "stopped"' in (folder / "summary.json").read_text()


def listening(process: psutil.Process) -> list[psutil._common.pconn]:
    try:
        return [c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def shared_memory(process: psutil.Process) -> set[Path]:
    """The files of /dev/shm that the process maps."""
    try:
        return {Path(region.path) for region in process.memory_maps() if region.path.startswith("/dev/shm/")}
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return set()
