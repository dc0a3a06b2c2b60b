"""A process of a run from the command to its end: loop, books, records, checkpoints, lease and resume are the run's
own; an engine and a learner that cost nothing stand for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from rlhf.controller import rl as training
from rlhf.controller.callbacks import Checkpoints, Evaluations, Preemption
from rlhf.controller.context import RunContext, begin, run_folder
from rlhf.controller.run import Run
from rlhf.controller.train import reports
from rlhf.durable import synced
from rlhf.http.outages import Outages
from rlhf.recipe.loading import LoadedRecipe, recipe_from
from rlhf.reward.reward_interface import LiveReward
from rlhf.rollout.group import GroupRollout
from rlhf.runs.view import PlainView
from rlhf.tracing import Clock
from rlhf.types import Sampling, Written
from tests.env.looping import WholeLearner
from tests.fakes import FakeEngine, FakeRenderer, FakeTasks
from tests.small_tasks import sorting

BEGAN = {"model.path": "digest"}
T = TypeVar("T")


class SavingLearner(WholeLearner):
    """Its state is its version, in a file of each of two ranks."""

    logprob_difference = 0.0
    """Of its publishes: it is its own publisher too."""

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

    def __init__(self, reward: LiveReward, *, evaluate: Any = None, outages: Outages | None = None) -> None:
        self.reward, self.evaluate, self.renderer = reward, evaluate, FakeRenderer()
        self.outages = outages or Outages(seconds=0, tell=print)

    def rollout(
        self, sampling: Sampling, *, group_size: int, filter_equal_rewards: bool = False, **_: Any
    ) -> GroupRollout:
        return GroupRollout(
            engine=FakeEngine(), renderer=FakeRenderer(), reward=self.reward, sampling=sampling,
            group_size=group_size, max_context_tokens=64, run_seed=0, filter_equal_rewards=filter_equal_rewards,
        )  # fmt: skip

    def evaluator(self, data: Any, problems: Any, **_: Any) -> Any:
        return self.evaluate


def recipe_for(folder: Path, train: dict[str, Any] | None = None, **trainer: Any) -> LoadedRecipe:
    return recipe_from(
        {
            "name": "t", "model": {"tiny": {}}, "data": {"train": train or sorting()}, "reward": {"kind": "exact"},
            "run": {"dir": str(folder), "loggers": []}, "trainer": trainer,
        }
    )  # fmt: skip


def sitting(
    recipe: LoadedRecipe,
    play: Callable[[RunContext], Coroutine[Any, Any, T]],
    *,
    resume: bool,
    shown: StringIO | None = None,
    tell: Callable[[str], object] = print,
) -> T:
    """What `play` makes of the context of a run that begins or is resumed."""
    folder, point = run_folder(recipe.recipe, resume=resume, tell=tell)
    try:
        if point is None:
            folder.write_recipe(recipe.recipe, recipe.origins)
        view = PlainView(shown or StringIO())
        context = RunContext(
            recipe=recipe.recipe, folder=folder, clock=Clock(), view=view, point=point, origins=recipe.origins
        )
        return asyncio.run(play(context))
    finally:
        folder.give_back()


async def run_of(context: RunContext, learner: SavingLearner, serving: FakeServing, tasks: Any = None) -> Run:
    if context.point is not None:
        await learner.load(context.point.path)
    begin(context, BEGAN)
    playing = training.Playing(
        context, tasks=tasks or FakeTasks(), problems={}, serving=serving, learner=learner, publisher=learner,  # type: ignore[arg-type]
    )  # fmt: skip
    callbacks = (Preemption(), Checkpoints(), Evaluations(), reports(context), *playing.callbacks)
    return Run(context, playing, callbacks, began=BEGAN)  # type: ignore[arg-type]
