"""`rlhf serve …` and `rlhf view …` in a process of its own, which is told to end with the block, and does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.pace import scaled
from tests.warm.client import WarmProcess, start

ROOT = Path(__file__).parents[1]
START_SECONDS, STOP_SECONDS = scaled(120), scaled(40)
READ_AT_START = {"PYTHONHASHSEED"}
"""What Python reads before anything is imported: a fork has its server's."""
Process = WarmProcess | subprocess.Popen[bytes]


@contextmanager
def commanded(
    *words: object, command: str = "serve", in_background: bool = False, port: int = 0, **variables: str
) -> Iterator[tuple[str, Process]]:
    """The URL and the process of `rlhf serve WORDS` on `port` (0: a free one), or of another `command`, with more
    environment variables. A script that starts it with `&` has it ignore Ctrl-C (`in_background`).

    Its output goes to a file: nobody has to read it, and waiting for what it says has a deadline.
    """
    line = ["-m", "rlhf", command, *map(str, words), "--port", str(port)]
    surroundings = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    with tempfile.NamedTemporaryFile() as output:
        process: Process
        if in_background or READ_AT_START & variables.keys():
            words_of_python = [sys.executable, "-W", "ignore", *line]
            ignoring = partial(signal.signal, signal.SIGINT, signal.SIG_IGN) if in_background else None
            process = subprocess.Popen(
                words_of_python, stdout=output, stderr=output, cwd=ROOT, env=surroundings, preexec_fn=ignoring
            )
        else:
            process = start(line, stdout=output, stderr=output, environment=surroundings)
        try:
            yield _address(process, Path(output.name)), process
        finally:
            _end(process)


def _address(process: Process, output: Path) -> str:
    """Where the server says that it listens."""
    deadline, told = time.monotonic() + START_SECONDS, ""
    while time.monotonic() < deadline:
        told = output.read_text()
        if found := re.search(r" at (http://\S+:\d+)", told):
            return found[1]
        assert process.poll() is None, told
        time.sleep(0.05)
    raise TimeoutError(f"the server did not start within {START_SECONDS} s: {told}")


def _end(process: Process) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)
        raise
