"""Scorers that break in every way a user's can; run in worker processes by the tests."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def length(response: str, row: dict[str, Any]) -> int:
    print("a scorer may print")
    return len(response)


def misbehave(response: str, row: dict[str, Any]) -> Any:
    """Break the way that `response` names."""
    return BEHAVIOURS[response](row)


def leave_a_child_and_hang(row: dict[str, Any]) -> None:
    child = subprocess.Popen(["sleep", "60"])
    with open(row["pid_file"], "w") as file:
        file.write(str(child.pid))
    time.sleep(60)


def ignore_signals(row: dict[str, Any]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(60)


def nap(row: dict[str, Any]) -> float:
    time.sleep(row["seconds"])
    return 1.0


def die_at_first(row: dict[str, Any]) -> float:
    """End the process, so many times."""
    with open(row["file"], "a+") as file:
        file.write(".")
        file.seek(0)
        if len(file.read()) <= row["times"]:
            os._exit(3)
    return 1.0


BEHAVIOURS: dict[str, Any] = {
    "hang": lambda row: time.sleep(60),
    "loop in C": lambda row: sum(range(10**12)),
    "ignore signals": ignore_signals,
    "leave a child and hang": leave_a_child_and_hang,
    "exit": lambda row: os._exit(3),
    "sys.exit": lambda row: sys.exit(4),
    "fork": lambda row: float(os.fork() == 0),
    "be killed": lambda row: os.kill(os.getpid(), signal.SIGKILL),
    "raise": lambda row: row["no such column"],
    "nan": lambda row: float("nan"),
    "inf": lambda row: -float("inf"),
    "absurd": lambda row: 1e300,
    "text": lambda row: "1.0",
    "none": lambda row: None,
    "true": lambda row: True,
    "tell its memory rank": lambda row: float(Path("/proc/self/oom_score_adj").read_text()),
    "hoard": lambda row: len(bytearray(2**31)),
    "nap": nap,
    "die at first": die_at_first,
}


def talk(response: str, row: dict[str, Any]) -> float:
    """Prints what it is asked."""
    print(f"scoring {response}", flush=True)
    return 1.0


def worth(response: str, row: dict[str, Any], *, each: float) -> float:
    """So much for every character."""
    return each * len(response)


def memory_bound(response: str, row: dict[str, Any]) -> float:
    """The most address space of this process; -1 for no bound."""
    return float(resource.getrlimit(resource.RLIMIT_AS)[0])
