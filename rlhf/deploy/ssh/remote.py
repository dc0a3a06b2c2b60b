"""The remote process of `rlhf launch`: runs one command on this host while the connection lives.

It reports what this host has, waits for its command on standard input, and runs it. Secrets are sent with the command,
so they are on no command line. The launcher sends a line every few seconds. When the input ends, or no line arrives for
too long because the network failed, the command gets SIGTERM, independently of ssh and its server.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from rlhf.cluster.machine import this_machine

READY = "rlhf-ready "
"""Prefix of the line that reports this host's resources: a login shell may print other lines first."""
SAVE = "save"
"""The launcher's line that requests SIGUSR1."""
SILENCE_SECONDS = 45.0
"""Longer than ssh needs to detect a lost connection (25 s): so the launcher reports the host before its node ends."""
GRACE_SECONDS = 25.0
"""Time that the command has to end after SIGTERM: more than the supervisor gives to its program."""
DRAIN_SECONDS = 5.0
PR_SET_PDEATHSIG = 1


class Launcher:
    """Reads the launcher's lines from a file descriptor; a long silence counts as the end of input."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unread = b""

    def line(self) -> str | None:
        """Return the next line, or None at the end of input."""
        while b"\n" not in self._unread:
            readable, _, _ = select.select([self._descriptor], [], [], SILENCE_SECONDS)
            read = os.read(self._descriptor, 65536) if readable else b""
            if not read:
                return None
            self._unread += read
        first, _, self._unread = self._unread.partition(b"\n")
        return first.decode()

    def orders(self) -> Mapping[str, Any] | None:
        """Return the first line that is not empty, parsed; None if the launcher ended before it sent one."""
        while (line := self.line()) is not None:
            if line:
                orders: Mapping[str, Any] = json.loads(line)
                return orders
        return None

    def until_gone(self, save: Callable[[], None]) -> None:
        """Wait for the end of input; call `save` for each save request."""
        while (line := self.line()) is not None:
            if line == SAVE:
                save()


def remote_main(shared: str) -> int:
    """Report this host's resources, then run the command that arrives. Every host must see the folder `shared`."""
    machine = this_machine()
    facts = {"cpus": machine.cpus, "gpus": machine.gpus, "host": socket.gethostname(), "sees": Path(shared).is_dir()}
    print(READY + json.dumps(facts), flush=True)
    launcher = Launcher(sys.stdin.fileno())
    orders = launcher.orders()
    return 0 if orders is None else run_remote_command(orders, launcher)


def run_remote_command(orders: Mapping[str, Any], launcher: Launcher) -> int:
    """Run the command until it ends or the launcher is gone. Returns its exit code, or 128 + n for signal n."""
    child = subprocess.Popen(
        orders["command"], cwd=orders["folder"], env={**os.environ, **with_own_programs(), **orders["environment"]},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=_end_with_parent,
    )  # fmt: skip
    for ending in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ending, lambda number, frame: child.terminate())
    pumps = [_thread(_pump, child.stdout, 1), _thread(_pump, child.stderr, 2)]
    _thread(_end_with, launcher, child)
    code = child.wait()
    deadline = time.monotonic() + DRAIN_SECONDS
    for pump in pumps:
        pump.join(max(0.0, deadline - time.monotonic()))  # a leftover process may hold the pipe open
    return code if code >= 0 else 128 - code


def with_own_programs() -> dict[str, str]:
    """Return the search path with this Python's programs first: a login over ssh activates no environment."""
    return {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def _end_with_parent() -> None:
    """Have the kernel send SIGTERM to the command when this process dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _end_with(launcher: Launcher, child: subprocess.Popen[bytes]) -> None:
    """End the command when the launcher is gone. Before that, forward save requests to it as SIGUSR1."""
    launcher.until_gone(lambda: child.send_signal(signal.SIGUSR1))
    child.terminate()
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


def _pump(source: BinaryIO, target: int) -> None:
    """Forward output. Write errors of a broken connection are ignored, so that the command can end in order."""
    for line in source:
        try:
            os.write(target, line)
        except OSError:
            continue


def _thread(target: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


if __name__ == "__main__":
    sys.exit(remote_main(sys.argv[1]))
