"""`python -m benchmarks end_to_end`: both sides in turns, a table, and the RESULT line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from benchmarks.end_to_end.figures import figures, missed, result
from benchmarks.end_to_end.measurement import Measurement, summarize, table
from benchmarks.end_to_end.model import save_start_model
from benchmarks.end_to_end.sides import require_trl, run, sides_of
from benchmarks.end_to_end.workload import PROMPTS_PER_UPDATE, Inputs, Lengths, Precision, write_prompts
from rlhf.errors import DeadlinePassed, PlacementError, RlhfError, WorkerDied

CORES = 2
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
LENGTHS: tuple[Lengths, ...] = ("equal", "long_tail")


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
        parts = product(options.only, options.precisions)
        answers = [m for lengths, precision in parts for m in measure(inputs, lengths, precision, options)]
    without = [str(answer) for answer in answers if isinstance(answer, RlhfError)]
    summary = summarize([answer for answer in answers if isinstance(answer, Measurement)])
    print(f"\nSeconds are those of one update.\n\n{table(summary)}\n")
    facts = {"parameters": parameters, "cores": cores, "rounds": options.rounds, "updates_measured": options.updates}
    facts |= {"without_figures": without}
    print("RESULT", json.dumps(result(summary, facts)), flush=True)
    if too_low := missed(figures(summary)):
        sys.exit(f"missed: {'; '.join(too_low)}")
    if without:
        sys.exit(f"without figures: {'; '.join(line.splitlines()[0] for line in without)}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks end_to_end", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="how often every side runs")
    parser.add_argument("--updates", type=int, default=1, help="updates measured in a run, after one of warm-up")
    parser.add_argument("--only", nargs="+", choices=LENGTHS, default=LENGTHS, help="lengths of the replies")
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


def measure(
    inputs: Inputs, lengths: Lengths, precision: Precision, options: argparse.Namespace
) -> Iterator[Measurement | RlhfError]:
    """All sides in turns, so that a machine that slows down slows both. One that passes its deadline or dies takes no
    other's figures with it, and is not asked again."""
    failed: set[str] = set()
    for _ in range(options.rounds):
        for side in sides_of(lengths):
            if side.name in failed:
                continue
            try:
                yield shown(run(side, inputs, precision, options.updates))
            except (DeadlinePassed, WorkerDied) as error:
                print(f"{side.name:30s} {lengths:10s} {precision:9s} has no figure: {error}", flush=True)
                failed.add(side.name)
                yield error


def shown(measurement: Measurement) -> Measurement:
    names = f"{measurement.side:30s} {measurement.lengths:10s} {measurement.precision:9s}"
    print(f"{names} {measurement.samples_per_second:6.1f} samples/s", flush=True)
    return measurement
