"""When guard or program of a supervised run with a real Ray is killed, no process of it is left, and so no port, no
shared memory and no temporary file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.end_to_end.running import environment
from tests.end_to_end.test_clean_ends import MARK, marked, until
from tests.pace import scaled

pytestmark = pytest.mark.engine

LITTERING = Path(__file__).parent / "clean_end_program.py"
START_SECONDS, CLEAN_SECONDS = scaled(90.0), scaled(10.0)
GUARD, PROGRAM = range(2)


@pytest.mark.parametrize("who", [GUARD, PROGRAM], ids=["guard", "program"])
def test_after_sigkill_of_guard_or_program_nothing_is_left(tmp_path: Path, who: int) -> None:
    memory = Path("/dev/shm") / f"psm_{os.getpid()}_{who}"
    with tempfile.TemporaryDirectory(dir="/tmp") as temp:  # short enough for Ray's sockets
        variables = environment() | {MARK: str(tmp_path), "TMPDIR": temp}
        command = [sys.executable, str(LITTERING), str(tmp_path), memory.name]
        program = subprocess.Popen(command, env=variables, text=True, stderr=subprocess.PIPE, start_new_session=True)
        try:
            assert until((tmp_path / "ready").exists, START_SECONDS)
            names = {process.name() for process in marked(tmp_path)}
            assert memory.exists()
            assert {"raylet", "sleep"} <= names, "the daemon lives on without its parent"
            os.kill([int(pid) for pid in (tmp_path / "ready").read_text().split()][who], signal.SIGKILL)
            assert until(lambda: not marked(tmp_path), CLEAN_SECONDS), marked(tmp_path)
            assert until(lambda: not memory.exists() and not os.listdir(temp), CLEAN_SECONDS), os.listdir(temp)
        finally:
            for left in marked(tmp_path):
                left.kill()
        said = program.communicate(timeout=scaled(10))[1]
    assert program.returncode == (-signal.SIGKILL if who == GUARD else 128 + signal.SIGKILL)
    assert who == GUARD or "the controller was killed by SIGKILL" in said
