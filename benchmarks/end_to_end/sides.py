"""Runs one side in a process of its own and reads its last line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.end_to_end.measurement import Measurement
from benchmarks.end_to_end.workload import SAMPLES_PER_UPDATE, Inputs, Lengths, Precision
from rlhf.errors import DeadlinePassed, UserError, WorkerDied

ROOT = Path(__file__).parents[2]
TRL_PYTHON = ROOT / ".venv-trl" / "bin" / "python"
TRL_SCRIPT = Path(__file__).parent / "trl_side.py"
DEADLINE_SECONDS = 600.0
WARMUP_UPDATES = 1
TRL = "trl, 2 threads"
TRL_SMALL_BATCHES = "trl in batches of 32, 2 threads"
PRODUCTS = "products alone, at peak"
TRL_BATCHES: Mapping[str, Mapping[str, int]] = {
    TRL: {"microbatch": 64, "generation_batch": SAMPLES_PER_UPDATE},
    TRL_SMALL_BATCHES: {"microbatch": 32, "generation_batch": 32},
}
"""An update generated at once, as TRL does by default; and the fastest for it on long-tailed replies of those in
docs/benchmarks.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """How a side is run: its name in the table, the lengths of its replies, its command, its threads a process, and its
    own arguments."""

    name: str
    lengths: Lengths
    command: tuple[str, ...]
    threads: int
    arguments: dict[str, Any]


def trl(name: str, lengths: Lengths) -> Side:
    """TRL's trainer, one process of two threads, with the batches of that name."""
    return Side(
        name=name,
        lengths=lengths,
        command=(str(TRL_PYTHON), str(TRL_SCRIPT)),
        threads=2,
        arguments={"threads": 2, **TRL_BATCHES[name]},
    )


def sides_of(lengths: Lengths) -> tuple[Side, ...]:
    """Who is measured on replies of `lengths`."""
    names = (TRL,) if lengths == "equal" else (TRL, TRL_SMALL_BATCHES)
    return (*(trl(name, lengths) for name in names), ours(0, lengths), ours(1, lengths), products(lengths))


def ours(staleness: int, lengths: Lengths) -> Side:
    """This system, engines and ranks of one thread each."""
    return Side(
        name=f"ours, staleness {staleness}",
        lengths=lengths,
        command=(sys.executable, "-m", "benchmarks.end_to_end.our_side"),
        threads=1,
        arguments={"staleness": staleness},
    )


def products(lengths: Lengths) -> Side:
    """No system, but the products that our side cannot do without."""
    command = (sys.executable, "-m", "benchmarks.end_to_end.products_side")
    return Side(name=PRODUCTS, lengths=lengths, command=command, threads=1, arguments={})


def require_trl() -> None:
    """Raises `UserError` when TRL's virtualenv is missing."""
    if not TRL_PYTHON.exists():
        raise UserError(
            "TRL's virtualenv is missing; make it: python3.11 -m venv .venv-trl && "
            ".venv-trl/bin/pip install --no-deps -r requirements/benchmark-trl.txt"
        )


def run(side: Side, inputs: Inputs, precision: Precision, updates: int) -> Measurement:
    """One run. Raises `DeadlinePassed`, or `WorkerDied` with the end of what the side said."""
    arguments = side.arguments | {
        "lengths": side.lengths,
        "model": str(inputs.model),
        "prompts": str(inputs.prompts),
        "precision": precision,
        "warmup": WARMUP_UPDATES,
        "updates": updates,
    }
    try:
        ended = subprocess.run(
            (*side.command, json.dumps(arguments)),
            cwd=ROOT,
            env=environment(side.threads),
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeadlinePassed(f"{side.name} in {precision}, {side.lengths},", DEADLINE_SECONDS) from None
    if ended.returncode:
        raise WorkerDied(side.name, f"exit status {ended.returncode}\n{ended.stderr[-2000:]}")
    return Measurement(side=side.name, lengths=side.lengths, precision=precision, **read_result(ended.stdout))


def read_result(output: str) -> dict[str, Any]:
    """The JSON of the last `RESULT` line."""
    line = [line for line in output.splitlines() if line.startswith("RESULT ")][-1]
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


def environment(threads: int) -> dict[str, str]:
    """The caller's environment with the threads pinned and nothing looked up on a hub."""
    return dict(os.environ) | {
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
