"""`python -m benchmarks sandbox`: programs per second on each isolation level, of this tree and optionally of another
one in turn."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parents[2]
LEVELS = ("bubblewrap", "landlock")
SIDE_SECONDS = 300.0


def main(arguments: Sequence[str]) -> None:
    """Measure the trees in turn, so that other work of the machine slows both, and print the median of the rounds."""
    options = parse(arguments)
    trees = {"this": HERE} | ({"other": options.beside} if options.beside else {})
    result: dict[str, float] = {}
    for level in LEVELS:
        rounds = [
            {name: side(tree, level, options.runs) for name, tree in trees.items()} for _ in range(options.rounds)
        ]
        for name in trees:
            rate, used = (statistics.median(sides[name][at] for sides in rounds) for at in (0, 1))
            result |= {
                f"{level}_{name}_runs_per_second": round(rate, 2),
                f"{level}_{name}_cpu_ms": round(1e3 * used, 1),
            }
            print(f"{level}, {name} tree: {rate:.2f} runs/s, {1e3 * used:.1f} ms of processor time per run", flush=True)
        if options.beside:
            result[f"{level}_ratio"] = round(statistics.median(s["this"][0] / s["other"][0] for s in rounds), 3)
    print("RESULT", json.dumps(result), flush=True)


def side(tree: Path, level: str, runs: int) -> tuple[float, float]:
    """Return runs per second, and processor seconds per run."""
    command = [sys.executable, str(Path(__file__).with_name("side.py")), level, str(runs)]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    output = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=SIDE_SECONDS).stdout
    rate, used = map(float, output.split())
    return rate, used


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks sandbox", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="number of measurements of each tree")
    parser.add_argument("--runs", type=int, default=60, help="programs per round")
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turn with this one")
    return parser.parse_args(arguments)
