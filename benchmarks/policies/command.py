"""`python -m benchmarks policies`: tic-tac-toe between 1, 3 and 8 policies, with the same games in each update.

Each number of policies trains from the same start, in turns, on two processes with one thread each. Compared are
samples per second of an update (generation, training, weight sync), and the most memory of the engine's process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil

RECIPE = Path(__file__).parents[2] / "recipes" / "tictactoe_selfplay.yaml"
FEWEST, MOST_MEMORY = 0.8, 1.2
"""Least ratio of samples per second with 3 policies to those with one, and largest of memory with 8."""
SECONDS = ("seconds/generate", "seconds/train", "seconds/weight_sync")


def player(role: str, task: object, ordinal: int, count: int) -> str:
    """Each policy plays as many games as the others, half of them first."""
    return f"p{(ordinal + (role == 'second')) % count}"


def player_of_1(role: str, task: object, ordinal: int) -> str:
    return player(role, task, ordinal, 1)


def player_of_3(role: str, task: object, ordinal: int) -> str:
    return player(role, task, ordinal, 3)


def player_of_8(role: str, task: object, ordinal: int) -> str:
    return player(role, task, ordinal, 8)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks policies", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="Runs of each number of policies.")
    parser.add_argument("--updates", type=int, default=8, help="Updates of a run; the first is not counted.")
    chosen = parser.parse_args(arguments)
    rates: dict[int, list[float]] = {1: [], 3: [], 8: []}
    memory: dict[int, list[int]] = {1: [], 3: [], 8: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(chosen.rounds):
            for count in rates:
                rate, peak = measured(Path(folder) / f"{count}-{number}", count, chosen.updates)
                print(f"{count} policies: {rate:.1f} samples/s, engine {peak / 2**20:.0f} MiB", flush=True)
                rates[count].append(rate)
                memory[count].append(peak)
    speed = {count: median(of) / median(rates[1]) for count, of in rates.items()}
    size = {count: median(of) / median(memory[1]) for count, of in memory.items()}
    print("RESULT", json.dumps({"samples_per_second": speed, "engine_memory": size}))
    if speed[3] < FEWEST or size[8] > MOST_MEMORY:
        sys.exit(f"missed: 3 policies reach {speed[3]:.2f} of the speed, 8 take {size[8]:.2f} of the memory")


def measured(folder: Path, count: int, updates: int) -> tuple[float, int]:
    """Train, and return samples per second in the median update, and the largest memory of the engine in bytes."""
    policies = ", ".join(f"p{place}: {{lora: {{rank: 16}}}}" for place in range(count))
    options = (
        f"run.dir={folder}", f"policies={{{policies}}}", f"roles={__name__}:player_of_{count}", "data.eval=null",
        f"trainer.updates={updates}", "trainer.eval_every=0", "model.warmup.updates=200",
        "rollout.cpus_per_engine=1", "trainer.deepspeed.cpus_per_rank=1",
    )  # fmt: skip
    peak = 0
    with Path(f"{folder}.log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rlhf", "train", str(RECIPE), *options],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log,
        )  # fmt: skip
        while process.poll() is None:
            peak = max(peak, engine_memory(folder))
            time.sleep(0.2)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"the run with {count} policies failed: {log.read()[-2000:]}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rates = [row["samples/trained"] / sum(row[name] for name in SECONDS) for row in rows[1:]]
    return median(rates), peak


def engine_memory(folder: Path) -> int:
    """Return the most memory that the engine of a run has held, in bytes; 0 before it starts and after its end."""
    for process in psutil.process_iter():
        with suppress(OSError, psutil.NoSuchProcess):
            if Path(os.readlink(f"/proc/{process.pid}/fd/1")) == folder / "logs" / "engine-0.log":
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
    return 0
