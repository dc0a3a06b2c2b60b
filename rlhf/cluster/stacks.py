"""The stacks of all threads of a run's processes; each process writes them to its log on request."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

import psutil

ASKED = signal.SIGUSR2
WRITE_SECONDS = 2.0


def write_stacks_when_asked(log: TextIO) -> None:
    """Write the stacks of this process to `log` on request, even while a call blocks. Whoever closes `log` calls
    `faulthandler.unregister(ASKED)` before."""
    faulthandler.register(ASKED, file=log)


def ask_for_stacks(processes: Iterable[psutil.Process]) -> None:
    """Let those processes that can do it write their stacks; a stopped one is continued for it."""
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            if _is_handled(process.pid):
                process.send_signal(ASKED)
                process.resume()
    time.sleep(WRITE_SECONDS)


def _is_handled(pid: int) -> bool:
    """Whether the process has a handler: the signal ends one without it."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (ASKED - 1) & 1)
