"""`python -m benchmarks environment`: steps a second of our server and of OpenEnv's own, with the same client."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.environment.load import measure
from rlhf.errors import UserError

REQUIRED = {1: 1.5, 4: 1.5, 16: 1.5, 64: 1.3, 256: 2.0}
"""Sessions at once, and how many times OpenEnv's rate ours must be."""
OPENENV = Path(".venv-ecosystem/openenv/bin/python")
OPENENV_SERVER = Path(__file__).parent / "openenv_server.py"
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """Steps a second, and seconds of the server's processor a step."""

    rate: float
    cost: float


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs. `field` is what its environment calls what is said to it."""

    port: int
    field: str
    process: psutil.Process

    def processor_seconds(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    if not OPENENV.exists():
        raise UserError(f"{OPENENV} is not there: make test-ecosystem builds it")
    with serving(our_words, "text", options) as ours, serving(openenv_words, "message", options) as theirs:
        rates = {count: rounds(ours, theirs, count, options) for count in options.sessions}
    print(table(rates))
    print("RESULT", json.dumps(result(rates)), flush=True)
    missed = [count for count, (our, their) in rates.items() if our.rate / their.rate < REQUIRED.get(count, 0)]
    if missed:
        sys.exit(f"missed at {', '.join(map(str, missed))} sessions")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks environment", description=__doc__)
    parser.add_argument("--sessions", type=int, nargs="+", default=list(REQUIRED))
    parser.add_argument("--rounds", type=int, default=7, help="how often each server is measured, in turns")
    parser.add_argument("--seconds", type=float, default=1.5, help="how long each time")
    parser.add_argument("--isolation", choices=("thread", "process"), default="thread")
    parser.add_argument("--environment", choices=("Echo", "AsyncEcho"), default="Echo", help="plain or async methods")
    return parser.parse_args(arguments)


def rounds(ours: Server, theirs: Server, sessions: int, options: argparse.Namespace) -> tuple[Measurement, Measurement]:
    """The best round of each server, in turns: what else runs on the machine only ever slows a round down."""
    pairs = [(one(ours, sessions, options), one(theirs, sessions, options)) for _ in range(options.rounds)]
    return tuple(Measurement(max(m.rate for m in side), min(m.cost for m in side)) for side in zip(*pairs, strict=True))


def one(server: Server, sessions: int, options: argparse.Namespace) -> Measurement:
    before = server.processor_seconds()
    rate = measure(server.port, server.field, sessions, options.seconds)
    return Measurement(rate, (server.processor_seconds() - before) / (rate * options.seconds))


def table(rates: Mapping[int, tuple[Measurement, Measurement]]) -> str:
    """Steps a second, and microseconds of the server's processor a step."""
    lines = [f"\n{'sessions':>8}{'ours':>10}{'OpenEnv':>10}{'ratio':>8}{'required':>10}{'µs ours':>10}{'OpenEnv':>10}"]
    for count, (our, their) in rates.items():
        lines.append(
            f"{count:>8}{our.rate:>10,.0f}{their.rate:>10,.0f}{our.rate / their.rate:>8.2f}{REQUIRED.get(count, 0):>10}"
            f"{our.cost * 1e6:>10.0f}{their.cost * 1e6:>10.0f}"
        )
    return "\n".join(lines)


def result(rates: Mapping[int, tuple[Measurement, Measurement]]) -> dict[str, float]:
    ratios = {f"ratio_{count}": our.rate / their.rate for count, (our, their) in rates.items()}
    costs = {f"cost_ratio_{count}": their.cost / our.cost for count, (our, their) in rates.items()}
    return {name: round(value, 3) for name, value in (ratios | costs).items()}


def our_words(port: int, options: argparse.Namespace) -> list[str]:
    rlhf = str(Path(sys.executable).parent / "rlhf")
    environment = f"benchmarks.environment.environments:{options.environment}"
    return [rlhf, "serve", "env", environment, "--port", str(port), "--isolation", options.isolation]


def openenv_words(port: int, options: argparse.Namespace) -> list[str]:
    return [str(OPENENV), str(OPENENV_SERVER), str(port), str(2 * max(options.sessions)), "0"]


@contextlib.contextmanager
def serving(
    words: Callable[[int, argparse.Namespace], list[str]], field: str, options: argparse.Namespace
) -> Iterator[Server]:
    """A server that answers, for as long as the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(words(port, options), env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        try:
            wait_until_healthy(port)
            yield Server(port, field, psutil.Process(process.pid))
        finally:
            process.kill()


def wait_until_healthy(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        time.sleep(0.2)
    raise UserError(f"the server on port {port} did not answer within {START_SECONDS:g} s")
