"""The far end of `rlhf launch`: one command on this host, for as long as the connection lives.

It says what this host has, waits for its orders on standard input, and runs them. Secrets come with the orders, and so
stand on no command line. The launcher sends a line every few seconds: when the input ends, or is silent for too long
because the network is gone, the command is told to end, whatever ssh and its server know of it.
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
"""Before the line that says what this host has: a login shell may print other things first."""
SAVE = "save"
"""The launcher's line that stands for SIGUSR1."""
SILENCE_SECONDS = 45.0
"""Longer than ssh takes to miss the other side (25 s): the launcher then names the host before its node ends."""
GRACE_SECONDS = 25.0
"""What the command has to end after SIGTERM: more than the supervisor gives to what it runs."""
DRAIN_SECONDS = 5.0
PR_SET_PDEATHSIG = 1


class Launcher:
    """Lines of the launcher, read from a descriptor; its silence counts as its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unread = b""

    def line(self) -> str | None:
        """The next line, or None when there will be none."""
        while b"\n" not in self._unread:
            readable, _, _ = select.select([self._descriptor], [], [], SILENCE_SECONDS)
            read = os.read(self._descriptor, 65536) if readable else b""
            if not read:
                return None
            self._unread += read
        first, _, self._unread = self._unread.partition(b"\n")
        return first.decode()

    def orders(self) -> Mapping[str, Any] | None:
        """The first line that is not empty; None where the launcher left without any."""
        while (line := self.line()) is not None:
            if line:
                orders: Mapping[str, Any] = json.loads(line)
                return orders
        return None

    def until_gone(self, save: Callable[[], None]) -> None:
        """Wait for the last line; `save` where one asks for it."""
        while (line := self.line()) is not None:
            if line == SAVE:
                save()


def remote_main(shared: str) -> int:
    """Say what is here, then run the orders. `shared` is a folder that every host must see."""
    machine = this_machine()
    facts = {"cpus": machine.cpus, "gpus": machine.gpus, "host": socket.gethostname(), "sees": Path(shared).is_dir()}
    print(READY + json.dumps(facts), flush=True)
    launcher = Launcher(sys.stdin.fileno())
    orders = launcher.orders()
    return 0 if orders is None else run_remote_command(orders, launcher)


def run_remote_command(orders: Mapping[str, Any], launcher: Launcher) -> int:
    """Run the command until it ends or the launcher leaves; its exit code, 128 + n for signal n."""
    child = subprocess.Popen(
        orders["command"], cwd=orders["folder"], env={**os.environ, **orders["environment"]},
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
        pump.join(max(0.0, deadline - time.monotonic()))  # a process that was left behind may hold the pipe open
    return code if code >= 0 else 128 - code


def _end_with_parent() -> None:
    """Whoever kills this process ends the command too: the kernel tells it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _end_with(launcher: Launcher, child: subprocess.Popen[bytes]) -> None:
    """End the command when the launcher is gone. Before that it may be asked to save what it has and leave."""
    launcher.until_gone(lambda: child.send_signal(signal.SIGUSR1))
    child.terminate()
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


def _pump(source: BinaryIO, target: int) -> None:
    """Pass output on. A connection that is gone takes none, and the command must not feel it: it ends in order."""
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
