"""`python -m benchmarks controller`: the controller's own time and memory, with engines and ranks that only sleep."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from benchmarks.controller.whole import Load, resident_bytes, seen

BOUNDS: Mapping[str, float] = {
    "us_per_token": 1.0,
    "ms_per_turn": 0.3,
    "ms_per_turn_with_environment": 0.3,
    "cost_at_2048_groups": 1.1,
    "cost_at_1000_engines": 1.1,
    "gb_at_100000_sessions": 4.0,
    "loop_lag_p99_ms": 50.0,
}
"""Each figure's largest value. `cost_…` is the processor time of a reply over that with 8 engines and 64 groups."""
SHORT = Load(groups=64, tokens=1, in_flight=128)
LONG, SHORTER = 1024, 64
MANY = Load(groups=1024, tokens=1, updates=2, in_flight=2048)
LARGE = Load(groups=256, tokens=1024, updates=2, in_flight=512)
SESSIONS = 100_000


def main(arguments: Sequence[str]) -> None:
    """Print the medians of the rounds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks controller", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="live sessions whose memory is measured")
    options = parser.parse_args(arguments)
    figures = {"gb_at_100000_sessions": resident_bytes(options.sessions, SHORT) / 1e9 * SESSIONS / options.sessions}
    rounds = [one_round() for _ in range(options.rounds)]
    figures |= {name: median(one[name] for one in rounds) for name in rounds[0]}
    for name, value in figures.items():
        print(f"{name:32} {value:8.3f}   required {f'<= {BOUNDS[name]:g}' if name in BOUNDS else '-'}")
    print("RESULT", json.dumps({name: round(value, 3) for name, value in figures.items()}), flush=True)
    missed = [name for name, bound in BOUNDS.items() if figures[name] > bound]
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


def one_round() -> dict[str, float]:
    """Return all figures but that of memory."""
    few = per_reply(SHORT)
    many, spread = per_reply(MANY), per_reply(replace(MANY, engines=1000))
    longer = per_reply(replace(SHORT, tokens=LONG)) - per_reply(replace(SHORT, tokens=SHORTER))
    large = seen(LARGE)
    return {
        "us_per_token": 1e6 * longer / (LONG - SHORTER),
        "ms_per_turn": 1e3 * few,
        "ms_per_turn_with_environment": 1e3 * per_reply(replace(SHORT, turns=4)) / 4,
        "cost_at_2048_groups": many / few,
        "cost_at_1000_engines": spread / few,
        "loop_lag_p99_ms": 1e3 * large.lag(0.99),
        "loop_lag_longest_ms": 1e3 * max(large.gaps),
    }


def per_reply(load: Load) -> float:
    """Return the seconds of the processor for an episode."""
    return seen(load).processor / load.samples
