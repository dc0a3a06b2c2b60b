"""A run that chooses its tasks and uses groups twice, and stops and goes on, is the run that never stopped.

The loop, the books, the records and the checkpoints are the run's own; a fake engine and a fake learner stand for the
rest.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

import pytest

from rlhf.apps.audit.audit_run import AuditCheck, updates_again
from rlhf.controller import rl as training
from rlhf.controller.callbacks import Checkpoints
from rlhf.controller.context import RunContext, begin, run_folder
from rlhf.controller.run import Run
from rlhf.controller.train import reports
from rlhf.controller.trainer_state import read_trainer_state
from rlhf.data.tasks import chosen_tasks, load_sets
from rlhf.http.outages import Outages
from rlhf.recipe.loading import LoadedRecipe, recipe_from
from rlhf.rollout.group import GroupRollout
from rlhf.runs.episode_parts import part_number, parts_in, read_episodes, write_part
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord
from rlhf.runs.stored_run import read_run
from rlhf.runs.summary import Summary
from rlhf.runs.view import PlainView
from rlhf.tracing import Clock
from rlhf.types import Group, Sampling, Scored, Task, Trajectory, Updated
from tests.fakes import FakeEngine, FakeRenderer
from tests.runs.test_power_cut import BEGAN, FakePublisher, SavingLearner
from tests.small_tasks import sorting

UPDATES, GROUPS, REPLAYED, AGE = 9, 4, 2, 2


class SomeTeach:
    """A reward that follows from the reply for numbers that begin with an even digit, and is 0 for others."""

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored]:
        teaches = int(task.messages[0].content[0]) % 2 == 0
        replies = [int(one.segments[0].token_ids[3]) for one in trajectories]
        return [Scored(value=float(teaches and reply % 2)) for reply in replies]


class Serving:
    outages = Outages(seconds=0, tell=print)

    def rollout(self, sampling: Sampling, *, group_size: int, filter_equal_rewards: bool, **_: Any) -> GroupRollout:
        return GroupRollout(
            engine=FakeEngine(), renderer=FakeRenderer(), reward=SomeTeach(), sampling=sampling,
            group_size=group_size, max_context_tokens=64, run_seed=0, filter_equal_rewards=filter_equal_rewards,
        )  # fmt: skip

    def evaluator(self, data: Any, problems: Any, **_: Any) -> None:
        return None


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
    return recipe_from(
        {
            "name": "t", "model": {"tiny": {}}, "reward": {"kind": "exact"}, "run": {"dir": str(folder), "loggers": []},
            "data": {"train": sorting(digits=2, rows=20) | {"order": "learnability"}},
            "trainer": {
                "updates": updates, "save_every": 2, "keep_checkpoints": 9, "groups_per_update": GROUPS,
                "group_size": 2, "replay": {"groups": REPLAYED, "max_age": AGE}, **trainer,
            },
        }
    )  # fmt: skip


def train(folder: Path, *, updates: int = UPDATES, resume: bool = False, **trainer: Any) -> Ran:
    recipe, ran = loaded(folder, updates, **trainer), Ran()
    own, point = run_folder(recipe.recipe, resume=resume, tell=lambda words: None)
    try:
        if point is None:
            own.write_recipe(recipe.recipe, recipe.origins)
        context = RunContext(
            recipe=recipe.recipe, folder=own, clock=Clock(), view=PlainView(StringIO()), point=point,
            origins=recipe.origins,
        )  # fmt: skip
        asyncio.run(played(context, ran))
    finally:
        own.give_back()
    return ran


async def played(context: RunContext, ran: Ran) -> None:
    data, point = context.recipe.data, context.point
    if point is not None:
        await ran.learner.load(point.path)
    begin(context, BEGAN)
    tasks = chosen_tasks(
        data, list(load_sets(data.train_sets).values()), 0, point.trainer_state.choices if point else None
    )
    playing = training.Playing(
        context, tasks=tasks, problems={}, serving=Serving(), learner=ran.learner,  # type: ignore[arg-type]
        publisher=FakePublisher(ran.learner),  # type: ignore[arg-type]
    )  # fmt: skip
    callbacks = (Checkpoints(), reports(context), *playing.callbacks)
    ran.summary = await Run(context, playing, callbacks, began=BEGAN).finish()  # type: ignore[arg-type]


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


def moved(records: list[EpisodeRecord], ordinal: int, update: int) -> list[EpisodeRecord]:
    return [replace(one, update=update) if is_second(one) and one.ordinal == ordinal else one for one in records]


def is_second(one: EpisodeRecord) -> bool:
    return one.outcome is EpisodeOutcome.SECOND_USE


def chosen(records: list[EpisodeRecord]) -> EpisodeRecord:
    """A second use."""
    return next(filter(is_second, records))


LIES: dict[str, Callable[[list[EpisodeRecord]], list[EpisodeRecord]]] = {
    "dropped": lambda records: [one for one in records if one is not chosen(records)],
    "of a group never trained": lambda records: [*records, replace(chosen(records), ordinal=1000)],
    "in another update": lambda records: moved(records, chosen(records).ordinal, UPDATES + AGE),
    "twice": lambda records: [*records, *(replace(one, update=9) for one in records if is_second(one))],
}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "plot_rewards", lambda *arguments: None)
        train(folder)
    return folder


def second_uses(folder: Path, **trainer: Any) -> AuditCheck:
    recipes = [(inf, loaded(folder, UPDATES, **trainer).recipe)]
    checks = updates_again(RunFolder(folder), read_run(folder), recipes)
    return next(check for check in checks if check.name == "second uses")


def test_the_audit_finds_every_second_use_in_order_and_in_the_metrics(audited: Path) -> None:
    again = [one for one in read_episodes(audited / "episodes") if is_second(one)]
    assert second_uses(audited) == AuditCheck(name="second uses", checked=f"{len(again) // 2} groups, each once")
    assert sum(row.get("replay/groups") or 0 for row in read_jsonl(audited / "metrics.jsonl")) == len(again) / 2
    assert max(Counter(one.update for one in again).values()) == 2 * REPLAYED


@pytest.mark.parametrize("lie", LIES)
def test_the_audit_tells_second_uses_from_mistakes(audited: Path, tmp_path: Path, lie: str) -> None:
    folder = shutil.copytree(audited, tmp_path / "run")
    part = next(one for one in parts_in(folder / "episodes") if any(map(is_second, read_episodes(one))))
    write_part(folder / "episodes", part_number(part), LIES[lie]([*read_episodes(part)]))
    assert second_uses(folder).faults


def test_a_second_use_of_a_group_with_equal_rewards_is_a_fault(audited: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(audited, tmp_path / "run")
    for part in parts_in(folder / "episodes"):
        write_part(
            part.parent, part_number(part), [replace(one, reward=one.reward and 0.0) for one in read_episodes(part)]
        )
    assert second_uses(folder).faults


@pytest.mark.parametrize("replay", [{"groups": 1, "max_age": AGE}, {"groups": 0}])
def test_second_uses_beyond_the_settings_are_faults(audited: Path, replay: dict[str, int]) -> None:
    assert second_uses(audited, replay=replay).faults
