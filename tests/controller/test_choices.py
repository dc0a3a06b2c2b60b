"""A run that chooses its tasks and uses groups twice, and stops and goes on, is the run that never stopped."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlhf.controller import rl as training
from rlhf.controller.context import RunContext
from rlhf.controller.trainer_state import read_trainer_state
from rlhf.data.tasks import chosen_tasks, load_sets
from rlhf.recipe.loading import LoadedRecipe
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.summary import Summary
from rlhf.types import Group, Scored, Task, Trajectory, Updated
from tests.runs.sitting import FakeServing, SavingLearner, recipe_for, run_of, sitting
from tests.small_tasks import sorting

UPDATES, GROUPS, REPLAYED = 9, 4, 2


class SomeTeach:
    """A reward that follows from the reply for numbers that begin with an even digit, and is 0 for others."""

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored]:
        teaches = int(task.messages[0].content[0]) % 2 == 0
        replies = [int(one.segments[0].token_ids[3]) for one in trajectories]
        return [Scored(value=float(teaches and reply % 2)) for reply in replies]


class NotingLearner(SavingLearner):
    """Notes the groups of every update, and whether they are second uses, with what is trained of them."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: dict[int, list[tuple[int, str, bool, list[Any]]]] = {}

    async def update(self, groups: Sequence[Group]) -> Updated:
        updated = await super().update(groups)
        self.noted[self.version] = [
            (one.ticket.ordinal, one.task.id, one.second_use,
             [(n, t.segments[0].token_ids.tolist(), t.segments[0].behaviour_logprobs.tolist(), s.value)
              for n, t, s in one.trainable])
            for one in groups
        ]  # fmt: skip
        return updated


@dataclass
class Ran:
    learner: NotingLearner = field(default_factory=NotingLearner)
    summary: Summary | None = None


def loaded(folder: Path, updates: int, **trainer: Any) -> LoadedRecipe:
    return recipe_for(
        folder, sorting(digits=2, rows=20) | {"order": "learnability"}, group_size=2,
        **{"updates": updates, "save_every": 2, "keep_checkpoints": 9, "groups_per_update": GROUPS,
           "replay": {"groups": REPLAYED}, **trainer},
    )  # fmt: skip


def train(folder: Path, *, updates: int = UPDATES, resume: bool = False, **trainer: Any) -> Ran:
    async def play(context: RunContext) -> Ran:
        data, point, ran = context.recipe.data, context.point, Ran()
        tasks = chosen_tasks(
            data, list(load_sets(data.train_sets).values()), 0, point.trainer_state.choices if point else None
        )
        ran.summary = await (await run_of(context, ran.learner, FakeServing(SomeTeach()), tasks)).finish()
        return ran

    return sitting(loaded(folder, updates, **trainer), play, resume=resume)


@pytest.fixture(autouse=True)
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "plot_rewards", lambda *arguments: None)


def records(folder: Path) -> list[dict[str, Any]]:
    kept = ("ordinal", "sample", "task", "outcome", "update", "reward")
    return [{name: getattr(one, name) for name in kept} for one in read_episodes(folder / "episodes")]


@pytest.mark.parametrize("filters", [False, True])
def test_a_resumed_run_plays_the_same_tasks_and_uses_the_same_groups_twice(tmp_path: Path, filters: bool) -> None:
    settings = {"filter": {"equal_rewards": filters}}
    whole = train(tmp_path / "whole", **settings)
    first = train(tmp_path / "cut", updates=4, **settings)
    then = train(tmp_path / "cut", resume=True, **settings)
    assert set(then.learner.noted) == set(range(5, UPDATES + 1))
    assert first.learner.noted | then.learner.noted == whole.learner.noted
    assert records(tmp_path / "cut") == records(tmp_path / "whole")
    assert then.summary.second_uses == whole.summary.second_uses > 4
    assert then.summary.sample_counts == whole.summary.sample_counts
    assert then.summary.group_counts["trained"] == UPDATES * GROUPS, "second uses are no groups of their own"


def test_with_staleness_the_groups_that_were_out_are_played_with_the_tasks_of_the_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, updates=5, save_every=4, max_staleness=2)
    shutil.rmtree(tmp_path / "checkpoints" / "version-000005")
    out = read_trainer_state(tmp_path / "checkpoints" / "version-000004").choices.chosen
    rows = [task.id for task in load_sets(loaded(tmp_path, UPDATES).recipe.data.train_sets)["data.train"]]
    then = train(tmp_path, resume=True, max_staleness=2)
    trained = {
        ordinal: task for update in then.learner.noted.values() for ordinal, task, again, _ in update if not again
    }
    assert sorted(trained) == list(range(4 * GROUPS, UPDATES * GROUPS))
    assert len(out) >= 2 * GROUPS
    assert {ordinal: trained[ordinal] for ordinal, _, _ in out if ordinal in trained} == {
        ordinal: rows[task] for ordinal, task, _ in out if ordinal in trained
    }


def test_tasks_that_teach_are_played_most(tmp_path: Path) -> None:
    ran = train(tmp_path, updates=60)
    late = [task for n, update in ran.learner.noted.items() if n > 30 for _, task, again, _ in update if not again]
    assert Counter(int(task.split("/")[-1][0]) % 2 == 0 for task in late)[True] > 0.75 * len(late)
