"""`python -m benchmarks learner`: the learner's arithmetic against its bounds, on one thread of this process."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

PARTS = ("packing", "head", "attention", "rate")


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    os.environ |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}  # read when torch and DeepSpeed are imported
    import torch

    from benchmarks.learner import attention, head, packing, rate
    from benchmarks.learner.figures import missed, result, table

    torch.set_num_threads(1)
    parts = {
        "packing": packing.figures,
        "head": head.figures,
        "attention": attention.figures,
        "rate": rate.figures,
    }
    figures = [figure for part in options.only for figure in parts[part](options.rounds)]
    print(f"\nProcessor seconds of one thread, the least of {options.rounds} rounds in turns.\n\n{table(figures)}\n")
    print("RESULT", json.dumps(result(figures)), flush=True)
    if out := missed(figures):
        sys.exit(f"missed: {', '.join(out)}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks learner", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often every side runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    return parser.parse_args(arguments)
