"""The power goes at any moment of a run: it goes on from the newest checkpoint or, while that is written, from the one
an interval before it, and the books balance."""

from __future__ import annotations

import io
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any

import pytest

from rlhf.cluster.watch import telling_error
from rlhf.controller import rl as training
from rlhf.controller.context import RunContext
from rlhf.controller.run import Run
from rlhf.runs import owner
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.summary import Summary
from tests.fakes import FakeReward
from tests.runs.sitting import FakeServing, SavingLearner, recipe_for, run_of, sitting

State = bytes | dict[str, int]
"""A file's content, or what a folder names: inodes by name."""
OPEN = io.open
OPERATIONS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "truncate", "ftruncate")


class PowerCut(BaseException):
    """Nothing of the program runs any more."""


class Disk:
    """The states of every file and folder below `root` since it was last synced, the synced one first."""

    def __init__(self, root: Path, cut_at: int | None = None) -> None:
        """The power goes before operation number `cut_at`, from 1."""
        self.root, self._cut_at = root, cut_at
        self.operations = 0
        self._one = RLock()  # records and checkpoints are written by several threads
        self._states: dict[int, list[State]] = {}
        self._held: list[int] = []
        self._look()
        self._states = {inode: states[-1:] for inode, states in self._states.items()}

    @contextmanager
    def watched(self) -> Iterator[Disk]:
        """The operations of this process are those of the disk."""
        try:
            with pytest.MonkeyPatch.context() as patch:
                for name in OPERATIONS:
                    patch.setattr(os, name, self._moment(getattr(os, name), synced=name == "fsync"))
                patch.setattr(io, "open", self._moment(OPEN))
                yield self
        finally:
            for descriptor in self._held:
                os.close(descriptor)

    def found(self, place: Path, rng: random.Random) -> Path:
        """What is left of `root` when the power comes back, made in `place`."""
        careless = rng.choice((0.0, 0.5, 1.0))  # how much of what was not asked for had come to the disk

        def make(inode: int, path: Path) -> None:
            states = self._states[inode]
            state = states[0] if rng.random() >= careless else rng.choice(states)
            if isinstance(state, dict):
                path.mkdir()
                for name, below in state.items():
                    make(below, path / name)
                return
            last = states[-1]
            assert isinstance(last, bytes)
            if len(states) > 1 and len(last) > len(state) and rng.random() < careless:
                grown = rng.randrange(len(state), len(last) + 1)
                state = rng.choice((last[:grown], last[: len(state)] + bytes(grown - len(state))))
            path.write_bytes(state)

        make(os.stat(self.root).st_ino, place)
        return place

    def _moment(self, real: Callable[..., Any], *, synced: bool = False) -> Callable[..., Any]:
        def operation(*arguments: Any, **named: Any) -> Any:
            if real is OPEN and str(named.get("mode", arguments[1] if len(arguments) > 1 else "r")).startswith("r"):
                return real(*arguments, **named)
            with self._one:
                self.operations += 1
                if self._cut_at is not None and self.operations >= self._cut_at:
                    if self.operations == self._cut_at:
                        self._look()
                    raise PowerCut
                answer = real(*arguments, **named)
                self._look()
                if synced and (states := self._states.get(os.fstat(arguments[0]).st_ino)):
                    del states[:-1]
                return answer

        return operation

    def _look(self) -> None:
        pending = [str(self.root)]
        while pending:
            folder = pending.pop()
            listing = {}
            for entry in list(os.scandir(folder)):
                listing[entry.name] = inode = entry.inode()
                if entry.is_dir():
                    self._hold(inode, entry.path, {})
                    pending.append(entry.path)
                else:
                    self._hold(inode, entry.path, b"")
                    self._note(inode, _content(entry.path))
            self._hold(os.stat(folder).st_ino, folder, {})
            self._note(os.stat(folder).st_ino, listing)

    def _hold(self, inode: int, path: str, empty: State) -> None:
        """Keep what is new open: its inode's number is then nobody else's, though it be deleted."""
        if inode not in self._states:
            self._held.append(os.open(path, os.O_RDONLY))
            self._states[inode] = [empty]

    def _note(self, inode: int, state: State) -> None:
        if self._states[inode][-1] != state:
            self._states[inode].append(state)


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 24)
    finally:
        os.close(descriptor)


UPDATES, INTERVAL, GROUPS, SAMPLES = 6, 2, 2, 2


@dataclass
class Sat:
    """One process of a run: what it told, from which version it went on, and how far it came."""

    told: list[str] = field(default_factory=list)
    began_at: int = 0
    run: Run | None = None
    summary: Summary | None = None

    @property
    def reached(self) -> int:
        return self.run.version if self.run else self.began_at


def sit(run: Path, sat: Sat, *, resume: bool) -> None:
    """A run in `run` from the command to its end."""

    async def play(context: RunContext) -> None:
        learner = SavingLearner()
        sat.run = await run_of(context, learner, FakeServing(FakeReward(0.0, 1.0)))
        sat.began_at = learner.version
        assert context.point is None or learner.version == context.point.version
        sat.summary = await sat.run.finish()

    recipe = recipe_for(
        run, updates=UPDATES, save_every=INTERVAL, keep_checkpoints=1, groups_per_update=GROUPS, group_size=SAMPLES,
        max_staleness=1,
    )  # fmt: skip
    try:
        sitting(recipe, play, resume=resume, tell=sat.told.append)
    except BaseExceptionGroup as several:
        raise telling_error(several) from None


@pytest.fixture
def reboots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process is on a machine that has started anew; the owner before it is not waited for."""
    boots = count()
    monkeypatch.setattr(owner, "machine", lambda: f"boot {next(boots)}")
    monkeypatch.setattr(owner, "touched", lambda path, seconds: False)
    monkeypatch.setattr(training, "plot_rewards", lambda *arguments: None)


def operations(place: Path) -> int:
    """Of a whole run."""
    place.mkdir()
    with Disk(place).watched() as disk:
        sit(place / "run", Sat(), resume=False)
    return disk.operations


def cut(place: Path, at: int, rng: random.Random, *, resume: bool) -> tuple[Path, Sat]:
    """A process in `place/run` whose power goes at operation `at`; what is found in its place then."""
    sat = Sat()
    with suppress(PowerCut), (disk := Disk(place, at)).watched():
        sit(place / "run", sat, resume=resume)
    return disk.found(place.with_name(f"{place.name}-found"), rng), sat


def balanced(run: Path, summary: Summary) -> bool:
    """Every group and episode once, in the counts of all processes as in the records."""
    groups = summary.group_counts
    assert groups["trained"] == UPDATES * GROUPS
    assert groups["admitted"] == sum(groups[outcome] for outcome in ("trained", "filtered", "failed", "in_flight"))
    records = list(read_episodes(run / "episodes"))
    trained = Counter((one.ordinal, one.sample, one.update) for one in records if one.outcome == "trained")
    assert trained == {(n, sample, n // GROUPS + 1): 1 for n in range(UPDATES * GROUPS) for sample in range(SAMPLES)}
    outcomes = Counter(one.outcome.value for one in records)
    assert {name: many for name, many in summary.sample_counts.items() if many} == outcomes | {"admitted": len(records)}
    assert [line["update"] for line in read_jsonl(run / "metrics.jsonl")] == list(range(1, UPDATES + 1))
    return True


@pytest.mark.usefixtures("reboots")
@pytest.mark.parametrize("points", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_a_run_whose_power_went_goes_on_from_its_newest_checkpoint_or_the_one_before_if_that_is_being_written(
    tmp_path: Path, points: int
) -> None:
    rng, total = random.Random(points), operations(tmp_path / "whole")
    for number in range(points):
        place, resume, reached = tmp_path / str(number), False, 0
        place.mkdir()
        for _ in range(rng.choice((1, 1, 2))):  # the power may go again in the process after it
            place, sat = cut(place, rng.randint(1, total), rng, resume=resume)
            resume, reached = True, max(reached, sat.reached)
        last = Sat()
        (place / "run").mkdir(exist_ok=True)
        sit(place / "run", last, resume=True)
        assert reached - last.began_at <= 2 * INTERVAL, (number, last.told)
        assert last.summary is not None
        assert balanced(place / "run", last.summary)
