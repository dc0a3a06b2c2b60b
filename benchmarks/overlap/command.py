"""`python -m benchmarks overlap`: how far learner and engines hide each other, over the ideal schedule.

Engines, ranks and an environment only sleep; everything between them is real.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.controller.whole import DAY, Load, StandIns, assembled
from benchmarks.overlap.stand_ins import DrawnEngine, SlowCalls, SyncSeconds, TrainingRank, equal, lognormal
from rlhf.controller.callbacks import idle_shares
from rlhf.controller.event_loop_latency import responsive_event_loop
from rlhf.engines.engine import RemoteEngine
from rlhf.rollout.episode import AnswerOnce
from rlhf.rollout.turns import TurnRules, WithEnvironment
from rlhf.tracing import Clock, Span
from rlhf.trainer.learner import RemoteLearner
from rlhf.types import PolicyVersion, Updated
from rlhf.weight_sync.canary import Canary
from rlhf.weight_sync.publish import Publisher
from rlhf.weight_sync.tolerance import EXACT

RATIO, IDLE = 0.9, 0.05
ENGINES, PLACES = 2, 8
GROUPS, GROUP = 16, 8
SHORTER, LONGER = 4.8, 6.0
"""Seconds in which all places can sample the replies of an update, or a learner train on them."""
SYNC = SyncSeconds(transfer=0.12, commit=0.04, canary=0.04)
"""A thirtieth of training; in `end_to_end` a weight sync takes a fiftieth to a thirtieth."""
TURNS, CALL = 3, 0.2
"""The calls of an episode, each in units of the reply before it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Lengths of replies, turns with an environment, and the seconds of generation and of training."""

    drawn: Callable[[str], float] = equal
    turns: int = 0
    generate: float = SHORTER
    train: float = LONGER

    @property
    def reply(self) -> float:
        """The seconds of the mean reply."""
        return self.generate * ENGINES * PLACES / (GROUPS * GROUP * max(self.turns, 1))


ROWS: Mapping[str, Row] = {
    "equal": Row(),
    "tail": Row(drawn=lognormal),
    "slow_calls": Row(turns=TURNS),
    "equal_longer": Row(generate=LONGER, train=SHORTER),
    "tail_longer": Row(drawn=lognormal, generate=LONGER, train=SHORTER),
    "slow_calls_longer": Row(turns=TURNS, generate=LONGER, train=SHORTER),
}
"""Where generation is the shorter, and where it is the longer."""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks overlap", description=__doc__)
    parser.add_argument("--updates", type=int, default=9)
    parser.add_argument("--staleness", type=int, default=1, help="trainer.max_staleness")
    parser.add_argument("--only", nargs="*", choices=list(ROWS), default=list(ROWS))
    options = parser.parse_args(arguments)
    figures: dict[str, dict[str, float]] = {}
    for name in options.only:
        found = asyncio.run(seen(ROWS[name], options.updates, options.staleness)).figures()
        figures[name] = {figure: round(value, 3) for figure, value in found.items()}
        print(f"{name:18}", *(f"{figure} {value:.3f}" for figure, value in found.items()), flush=True)
    print("RESULT", json.dumps({"benchmark": "overlap", **figures}), flush=True)
    missed = [f"ratio of {name}" for name, one in figures.items() if one["ratio"] < RATIO]
    shorter = [name for name in figures if ROWS[name].generate < ROWS[name].train]
    missed += [f"idle share of {name}" for name in shorter if figures[name]["all"] > IDLE]
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the `counted` updates took: all together, in the engines by session, in training, in each span; and how long
    sampling stood still at a weight sync. The first groups have to be waited for, and during the last updates none are
    played: these updates are not counted."""

    counted: range
    wall: float
    sampled: Mapping[str, float]
    trained: Sequence[float]
    spans: Sequence[Span]
    still: float

    def figures(self) -> dict[str, float]:
        """Return the ratios and shares to print."""
        return {
            "ratio": ideal_seconds(self.sampled, self.trained, self.counted) / self.wall,
            "still_s": self.still,
            **idle_shares(self.spans, self.wall),
        }


async def seen(row: Row, updates: int, staleness: int) -> Seen:
    """Run this many updates."""
    counted = range(1 + staleness, updates - staleness)
    load = Load(
        groups=GROUPS, group=GROUP, tokens=16, updates=updates, in_flight=(1 + staleness) * GROUPS, engines=ENGINES,
        turns=row.turns, staleness=staleness,
    )  # fmt: skip
    workers = [DrawnEngine(f"engine-{n}", row.reply, row.drawn, PLACES, SYNC) for n in range(ENGINES)]
    rank, calls = TrainingRank("learner-0", row.train, SYNC), SlowCalls(row.turns, CALL * row.reply)
    rules = TurnRules(environment=calls.spec.name, max_turns=row.turns, timeout_seconds=DAY)
    play = WithEnvironment(environments=calls, rules=rules) if row.turns else AnswerOnce()
    with TemporaryDirectory() as scratch:
        parts = StandIns(engines=workers, ranks=[rank], weights=weight_sync, play=play)
        async with assembled(load, Path(scratch) / "run", parts) as made:
            boundary = Boundary(made.clock, counted)
            with responsive_event_loop():
                await made.loop.run(updates, boundary)
            await made.log.written()
    sampled = {session: seconds for worker in workers for session, seconds in worker.worked.items()}
    return Seen(
        counted=counted, wall=boundary.ends[counted.stop] - boundary.ends[counted.start], sampled=sampled,
        trained=rank.trained, spans=boundary.spans, still=workers[0].stood_still / (1 + updates),
    )  # fmt: skip


def ideal_seconds(sampled: Mapping[str, float], trained: Sequence[float], updates: range) -> float:
    """Return the time of these updates if one of the two never waited: the learner, or all places of the engines. The
    sessions are called `train-ORDINAL-SAMPLE`."""
    samples = sum(one for session, one in sampled.items() if int(session.split("-")[1]) // GROUPS in updates)
    return max(sum(trained[update] for update in updates), samples / (ENGINES * PLACES))


class Boundary:
    """Notes the ends of updates, and the spans of those that are counted."""

    def __init__(self, clock: Clock, counted: range) -> None:
        self._clock, self._counted = clock, counted
        self.ends: list[float] = []
        self.spans: list[Span] = []

    async def __call__(self, version: PolicyVersion, updated: Updated | None) -> bool:
        self.ends.append(self._clock.elapsed_seconds)
        spans = self._clock.drain()
        self.spans += spans if version - 1 in self._counted else ()
        return False


def weight_sync(learner: RemoteLearner, engines: Sequence[RemoteEngine]) -> Publisher:
    tokens = np.zeros(12, np.int32)
    canary = Canary(sequences=(tokens,), long_prompt=tokens, reply_tokens=4, limits=EXACT)
    return Publisher(learner, engines, canary=canary, phase_timeout_seconds=60.0)
