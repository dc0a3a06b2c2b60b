"""`python -m benchmarks engine`: our engine and bare vLLM, in turns, on the same model, prompts and lengths.

`bare` is `vllm.LLM.generate`; `every_step` is vLLM's engine with an output of every request after every step, as our
engine was at first. All draw by a seed a request and return the log-probs of what they sampled. Figures: tokens/s, and
microseconds of processor time a token in the model, in vLLM's scheduler, and in the rest: collecting what was sampled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.end_to_end.model import save_start_model
from rlhf.engines.vllm.environment import engine_environment

SIDES = ("bare", "ours", "every_step")
RATE_BOUND, OUTSIDE_BOUND = 0.97, 0.5
FIGURES = ("rate", "model", "scheduler", "outputs")


def main(arguments: Sequence[str]) -> None:
    chosen = parse(arguments)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_start_model(Path(folder))
        for sequences in chosen.sequences:
            figures |= compared(Path(folder), sequences, chosen.rounds)
    print("RESULT", json.dumps(figures), flush=True)
    missed = [
        name
        for name, value in figures.items()
        if ("ours_over_bare" in name and value < RATE_BOUND) or ("outside_over" in name and value > OUTSIDE_BOUND)
    ]
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


def compared(model: Path, sequences: int, rounds: int) -> dict[str, float]:
    """Medians over the rounds, after one that is not counted; all sides stay started and take turns."""
    sides = {name: Side(name, model, sequences) for name in SIDES}
    try:
        seen = [{name: side.generate() for name, side in sides.items()} for _ in range(rounds + 1)][1:]
    finally:
        for side in sides.values():
            side.end()
    each = {name: {figure: median(one[name][figure] for one in seen) for figure in FIGURES} for name in SIDES}
    for name, figures in each.items():
        rate, *spent = (figures[figure] for figure in FIGURES)
        told = ", ".join(f"{figure} {one:.1f}" for figure, one in zip(FIGURES[1:], spent, strict=True))
        print(f"{sequences:5} sequences  {name:10} {rate:6.0f} tokens/s; µs a token: {told}", flush=True)
    ours, every_step = each["ours"], each["every_step"]
    outside = [side["scheduler"] + side["outputs"] for side in (ours, every_step)]
    return {
        f"ours_over_bare_{sequences}": round(median(one["ours"]["rate"] / one["bare"]["rate"] for one in seen), 3),
        f"outside_over_every_step_{sequences}": round(outside[0] / outside[1], 3),
        f"outputs_over_every_step_{sequences}": round(ours["outputs"] / every_step["outputs"], 3),
    }


class Side:
    """A side's process."""

    def __init__(self, name: str, model: Path, sequences: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engine.sides", name, str(model), str(sequences)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | engine_environment("cpu") | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert "ready" in self._answer()

    def generate(self) -> dict[str, float]:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)

    def _answer(self) -> dict[str, float]:
        """What the process says next as JSON, among what its libraries print."""
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, float] = json.loads(line)
                return answer
        sys.exit("a side ended without an answer")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks engine", description=__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args(arguments)
