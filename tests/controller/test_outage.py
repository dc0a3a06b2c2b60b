"""A run whose judge is gone holds its groups: it is asked to end, saves at once, and a resumed run plays them again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import pytest

from rlhf.controller import rl as training
from rlhf.controller.context import RunContext
from rlhf.controller.preemption import Leaving
from rlhf.http.outages import Outages
from rlhf.rollout.evaluation import Evaluation, SetResult
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.summary import Summary
from rlhf.types import Scored, Task, Trajectory, Unscored
from tests.pace import scaled
from tests.runs.sitting import FakeServing, SavingLearner, recipe_for, run_of, sitting

UPDATES, GROUPS, SAMPLES = 4, 2, 2


@dataclass
class Judge:
    """Scores `left` groups and evaluations, and then is out; `leaving` is asked to end the run then."""

    outages: Outages
    left: float
    leaving: Leaving
    evaluated: list[int] = field(default_factory=list)

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        await self._answers()
        return [Scored(value=float(number)) for number, _ in enumerate(trajectories, 1)]

    async def evaluate(self, version: int) -> Evaluation:
        await self._answers()
        self.evaluated.append(version)
        return Evaluation(sets=(SetResult(name="eval", problems=1, metrics={}, reward=1.0),))

    async def _answers(self) -> None:
        if self.left <= 0:
            self.outages.out.add("judge")
            self.leaving.ask("Ctrl-C")
            await asyncio.Event().wait()
        self.left -= 1


@dataclass
class Sat:
    """One process of a run."""

    summary: Summary
    evaluated: list[int]
    shown: str


def sit(folder: Path, left: float, *, resume: bool) -> Sat:
    """A run from the command to its end, with a judge that is out after it has answered `left` times."""
    shown = StringIO()

    async def play(context: RunContext) -> Sat:
        judge = Judge(Outages(seconds=900, tell=print), left, context.leaving)
        serving = FakeServing(judge, evaluate=judge.evaluate, outages=judge.outages)
        async with asyncio.timeout(scaled(30)):
            summary = await (await run_of(context, SavingLearner(), serving)).finish()
        return Sat(summary, judge.evaluated, shown.getvalue())

    recipe = recipe_for(
        folder, updates=UPDATES, save_every=0, eval_every=2, groups_per_update=GROUPS, group_size=SAMPLES,
        max_staleness=0,
    )  # fmt: skip
    return sitting(recipe, play, resume=resume, shown=shown)


@pytest.mark.parametrize(
    ("answers", "updates", "evaluated"),
    [
        pytest.param(0, 0, [], id="first evaluation"),
        pytest.param(1, 0, [0], id="first update"),
        pytest.param(1 + GROUPS + 1, 1, [0], id="update"),
        pytest.param(1 + 2 * GROUPS, 2, [0], id="evaluation"),
        pytest.param(1 + 2 * GROUPS + 1, 2, [0, 2], id="update after an evaluation"),
        pytest.param(1 + 4 * GROUPS + 1, 4, [0, 2], id="last evaluation"),
    ],
)
def test_a_held_run_that_must_end_saves_at_once_and_goes_on_where_it_was(
    answers: int, updates: int, evaluated: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "plot_rewards", lambda *arguments: None)
    held = sit(tmp_path / "run", answers, resume=False)
    assert (held.summary.updates, held.summary.saved, held.evaluated) == (updates, True, evaluated)
    assert held.summary.outcome.endswith("Ctrl-C")
    resumed = sit(tmp_path / "run", float("inf"), resume=True)
    assert resumed.summary.outcome == "finished"
    assert held.evaluated * (updates > 0) + resumed.evaluated == [0, 2, 4]
    records = list(read_episodes(tmp_path / "run" / "episodes"))
    assert sorted((one.ordinal, one.sample, one.update) for one in records if one.outcome == "trained") == [
        (n, sample, n // GROUPS + 1) for n in range(UPDATES * GROUPS) for sample in range(SAMPLES)
    ]
    assert {one.reward for one in records if one.outcome == "trained"} == {1.0, 2.0}
    assert [line["update"] for line in read_jsonl(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]


def test_a_run_that_waits_for_groups_says_how_many_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "plot_rewards", lambda *arguments: None)
    monkeypatch.setattr(training, "PROGRESS_SECONDS", 0.1)
    monkeypatch.setattr(training, "ASK_SECONDS", 0.1)
    assert f"groups 1/{GROUPS}, lost 0\n" in sit(tmp_path / "run", 1 + GROUPS + 1, resume=False).shown
