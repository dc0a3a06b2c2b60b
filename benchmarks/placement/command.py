"""`python -m benchmarks placement`: the time that a plan takes, over 128 and 1,024 nodes of 8 GPUs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from rlhf.cluster.described import describe
from rlhf.cluster.plan import plan
from rlhf.cluster.resources import Resources, Role

NODES = (128, 1024)
LONGEST_SECONDS = 1.0


def main(arguments: Sequence[str]) -> None:
    rounds = parse(arguments).rounds
    seconds = {}
    for count in NODES:
        nodes = [Resources(node=f"n{at:04}", cpus=96, gpus=8) for at in range(1, count + 1)]
        seconds[count] = min(timed(roles(count), nodes) for _ in range(rounds))
        workers = sum(role.count for role in roles(count))
        print(f"{count:,} nodes, {workers:,} workers: {seconds[count]:.3f} s, the least of {rounds} rounds")
    print(
        "RESULT", json.dumps({f"seconds_{count}_nodes": round(took, 4) for count, took in seconds.items()}), flush=True
    )
    if seconds[NODES[-1]] > LONGEST_SECONDS:
        sys.exit(f"missed: a plan over {NODES[-1]:,} nodes takes more than {LONGEST_SECONDS:g} s")


def roles(nodes: int) -> list[Role]:
    """A rank on every second GPU, spread; the others in engines of 4 GPUs; and two environment servers a node."""
    return [
        Role(name="learner", count=4 * nodes, cpus=4, gpus=1, layout="spread", factory="m:L"),
        Role(name="engine", count=nodes, cpus=8, gpus=4, factory="m:E"),
        Role(name="environment", count=2 * nodes, cpus=4, factory="m:S"),
    ]


def timed(workers: Sequence[Role], nodes: Sequence[Resources]) -> float:
    """Seconds to plan and to write the plan out."""
    began = time.perf_counter()
    describe(plan(workers, nodes))
    return time.perf_counter() - began


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks placement", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each plan is made")
    return parser.parse_args(arguments)
