"""The power goes at any moment of a run: it goes on from the newest checkpoint or, while that is written, from the one
an interval before it, and the books balance.

The loop, the books, the records, the checkpoints, the lease and the resume are the run's own; an engine and a learner
that cost nothing stand for the rest.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rlhf.cluster.watch import telling_error
from rlhf.controller import rl as training
from rlhf.controller.callbacks import Checkpoints, Evaluations, Preemption
from rlhf.controller.context import RunContext, begin, run_folder
from rlhf.controller.run import Run
from rlhf.controller.train import reports
from rlhf.durable import synced
from rlhf.http.outages import Outages
from rlhf.recipe.loading import recipe_from
from rlhf.rollout.group import GroupRollout
from rlhf.runs import owner
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.summary import Summary
from rlhf.runs.view import PlainView
from rlhf.tracing import Clock
from rlhf.types import Sampling, Written
from tests.env.looping import WholeLearner
from tests.fakes import FakeEngine, FakeRenderer, FakeReward, FakeTasks
from tests.power import Disk, PowerCut
from tests.small_tasks import sorting

UPDATES, INTERVAL, GROUPS, SAMPLES = 6, 2, 2, 2
BEGAN = {"model.path": "digest"}


class SavingLearner(WholeLearner):
    """Its state is its version, in a file of each of two ranks."""

    async def snapshot(self, path: Path) -> Coroutine[Any, Any, dict[str, Written]]:
        return self.write(path, self.version)

    async def write(self, path: Path, version: int) -> dict[str, Written]:
        files = [path / "deepspeed" / f"rank-{rank}.pt" for rank in range(2)]
        (path / "deepspeed").mkdir()
        for file in files:
            await asyncio.sleep(0)
            file.write_text(f"{version}\n" * 100)
        return synced(path, files)

    async def load(self, path: Path) -> None:
        (version,) = {(path / "deepspeed" / f"rank-{rank}.pt").read_text() for rank in range(2)}
        self.version = int(version.splitlines()[0])


class FakeServing:
    """What a run asks of its engines."""

    outages = Outages(seconds=0, tell=print)

    def rollout(self, sampling: Sampling, *, group_size: int, **_: Any) -> GroupRollout:
        return GroupRollout(
            engine=FakeEngine(), renderer=FakeRenderer(), reward=FakeReward(0.0, 1.0), sampling=sampling,
            group_size=group_size, max_context_tokens=64, run_seed=0,
        )  # fmt: skip

    def evaluator(self, data: Any, problems: Any, **_: Any) -> None:
        return None


class FakePublisher:
    logprob_difference = 0.0

    def __init__(self, learner: SavingLearner) -> None:
        self.publish = learner.publish


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
    trainer = {"updates": UPDATES, "save_every": INTERVAL, "keep_checkpoints": 1, "groups_per_update": GROUPS}
    recipe = recipe_from(
        {
            "name": "t", "model": {"tiny": {}}, "data": {"train": sorting()}, "reward": {"kind": "exact"},
            "run": {"dir": str(run), "loggers": []},
            "trainer": {**trainer, "group_size": SAMPLES, "max_staleness": 1},
        }
    )  # fmt: skip
    folder, point = run_folder(recipe.recipe, resume=resume, tell=sat.told.append)
    try:
        if point is None:
            folder.write_recipe(recipe.recipe, recipe.origins)
        context = RunContext(
            recipe=recipe.recipe, folder=folder, clock=Clock(), view=PlainView(StringIO()), point=point,
            origins=recipe.origins,
        )  # fmt: skip
        asyncio.run(played(context, sat))
    except BaseExceptionGroup as several:
        raise telling_error(several) from None
    finally:
        folder.give_back()


async def played(context: RunContext, sat: Sat) -> None:
    learner = SavingLearner()
    if context.point is not None:
        await learner.load(context.point.path)
        assert learner.version == context.point.version
        sat.began_at = learner.version
    begin(context, BEGAN)
    playing = training.Playing(
        context, tasks=FakeTasks(), problems={}, serving=FakeServing(), learner=learner,  # type: ignore[arg-type]
        publisher=FakePublisher(learner),  # type: ignore[arg-type]
    )  # fmt: skip
    callbacks = (Preemption(), Checkpoints(), Evaluations(), reports(context), *playing.callbacks)
    sat.run = Run(context, playing, callbacks, began=BEGAN)  # type: ignore[arg-type]
    sat.summary = await sat.run.finish()


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
