"""`python -m benchmarks end_to_end`: both sides in turns, a table, and the RESULT line."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.end_to_end.measurement import Measurement, best, result, summarize, table
from benchmarks.end_to_end.model import save_start_model
from benchmarks.end_to_end.sides import Side, ours, require_trl, run, trl
from benchmarks.end_to_end.workload import PROMPTS_PER_UPDATE, Inputs, Precision, write_prompts
from rlhf.errors import PlacementError

CORES = 2
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    require_trl()
    cores = pin()
    with tempfile.TemporaryDirectory() as folder:
        inputs, parameters = make_inputs(Path(folder))
        print(
            f"{parameters:,} parameters; cores {cores}; {options.rounds} rounds of {options.updates} updates",
            flush=True,
        )
        measurements = [m for precision in options.precisions for m in measure(inputs, precision, options)]
    summary = summarize(measurements)
    print(f"\nSeconds are those of one update.\n\n{table(summary)}\n")
    facts = {"parameters": parameters, "cores": cores, "rounds": options.rounds, "updates_measured": options.updates}
    print("RESULT", json.dumps(result(summary, facts)))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks end_to_end", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="how often every side runs")
    parser.add_argument("--updates", type=int, default=1, help="updates measured in a run, after one of warm-up")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    return parser.parse_args(arguments)


def pin() -> list[int]:
    """Bind this process, and so both sides, to two cores."""
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    if len(cores) < CORES:
        raise PlacementError(f"the benchmark needs {CORES} cores, this process may use {len(cores)}")
    os.sched_setaffinity(0, cores)
    return cores


def make_inputs(folder: Path) -> tuple[Inputs, int]:
    """Model and prompts for both sides, and the number of parameters."""
    inputs = Inputs(model=folder / "model", prompts=folder / "prompts.jsonl")
    write_prompts(inputs.prompts, rows=64 * PROMPTS_PER_UPDATE)
    return inputs, save_start_model(inputs.model)


def measure(inputs: Inputs, precision: Precision, options: argparse.Namespace) -> Iterator[Measurement]:
    """All sides in turns, so that a machine that slows down slows both. TRL's slower thread count runs in the first
    round only."""
    first = [shown(run(trl(threads), inputs, precision, options.updates)) for threads in (1, 2)]
    faster = trl(1 + first.index(best(first, "trl", precision)))
    yield from first
    for round_ in range(options.rounds):
        sides: list[Side] = [ours(0), ours(1)] if round_ == 0 else [faster, ours(0), ours(1)]
        for side in sides:
            yield shown(run(side, inputs, precision, options.updates))


def shown(measurement: Measurement) -> Measurement:
    print(
        f"{measurement.side:18s} {measurement.precision:9s} {measurement.samples_per_second:6.1f} samples/s", flush=True
    )
    return measurement
