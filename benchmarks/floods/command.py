"""`python -m benchmarks floods`: what clients without a token cost an environment server and those who have one."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection

import psutil

from benchmarks.environment.command import wait_until_healthy
from benchmarks.floods.flood import KINDS
from rlhf.errors import UserError

TOKEN = "a-token-of-the-benchmark"
MOST_GROWTH_MIB, MOST_SLOWER = 64.0, 3.0
ASK_EVERY_SECONDS = 0.01
QUIET = "quiet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Milliseconds that an honest client waits, at the median and at the 99th percentile, and the server's memory."""

    median: float
    p99: float
    asked: int
    most_mib: float


def main(arguments: Sequence[str]) -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks floods", description=__doc__)
    options.add_argument("--seconds", type=float, default=15.0, help="how long each flood")
    options.add_argument(
        "--niceness", type=int, default=0, help="of the flooding process, where it has no cores of its own"
    )
    chosen = options.parse_args(arguments)
    with serving() as (port, process):
        measure(port, process, 3.0)
        before = process.memory_info().rss / 2**20
        found = {QUIET: measure(port, process, chosen.seconds)}
        for kind in KINDS:
            with flooding(kind, port, chosen.seconds + 4, chosen.niceness):
                time.sleep(2)
                found[kind] = measure(port, process, chosen.seconds)
        found["quiet again"] = measure(port, process, chosen.seconds)
    print(table(found, before))
    growth = max(one.most_mib for one in found.values()) - before
    slower = {kind: found[kind].p99 / found[QUIET].p99 for kind in KINDS}
    print("RESULT", json.dumps({"growth_mib": round(growth, 1)} | {f"p99_{k}": round(v, 2) for k, v in slower.items()}))
    if growth > MOST_GROWTH_MIB or max(slower.values()) > MOST_SLOWER:
        sys.exit(f"missed: {growth:.0f} MiB, {max(slower.values()):.1f} times slower")


def measure(port: int, process: psutil.Process, seconds: float) -> Measured:
    """What one honest client sees, who asks a hundred times a second at most, on a connection of its own each time."""
    waits, most, end = [], 0, time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        ask(port)
        waits.append(time.monotonic() - began)
        most = max(most, process.memory_info().rss)
        time.sleep(max(0.0, ASK_EVERY_SECONDS - (time.monotonic() - began)))
    waits.sort()
    at = [1000 * waits[min(int(share * len(waits)), len(waits) - 1)] for share in (0.5, 0.99)]
    return Measured(median=at[0], p99=at[1], asked=len(waits), most_mib=most / 2**20)


def ask(port: int) -> None:
    """An episode is begun."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", "/reset", '{"seed": 1}', headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != HTTPStatus.OK:
            raise UserError(f"the server answered {answer.status}")


def table(found: dict[str, Measured], before: float) -> str:
    lines = [f"\n{'flood':>12}{'median ms':>11}{'p99 ms':>9}{'asked':>8}{'MiB more':>10}"]
    for kind, one in found.items():
        lines.append(f"{kind:>12}{one.median:>11.1f}{one.p99:>9.1f}{one.asked:>8}{one.most_mib - before:>10.1f}")
    return "\n".join(lines)


@contextlib.contextmanager
def serving() -> Iterator[tuple[int, psutil.Process]]:
    """`rlhf serve env` with a token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", "env", "benchmarks.environment.environments:AsyncEcho", "--port", str(port)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "FLOODS_TOKEN": TOKEN}
    command = [sys.executable, "-m", "rlhf", *words, "--token-env", "FLOODS_TOKEN"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until_healthy(port)
            yield port, psutil.Process(process.pid)
        finally:
            process.kill()


@contextlib.contextmanager
def flooding(kind: str, port: int, seconds: float, niceness: int) -> Iterator[None]:
    command = [
        "nice",
        "-n",
        str(niceness),
        sys.executable,
        "-m",
        "benchmarks.floods.flood",
        kind,
        str(port),
        str(seconds),
    ]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()
