"""Several runs with one engine and one rank, each from the same start weights, until a held-out reward is reached."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rlhf.controller.build import (
    Serving,
    make_learner,
    make_publisher,
    spawn_learners,
    start_ranks,
    started_cluster,
    started_serving,
)
from rlhf.controller.rl import make_buffer
from rlhf.controller.start_model import starting_model
from rlhf.data.tasks import chosen_tasks, held_out_problems, load_sets
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import roles_of
from rlhf.runs.view import PlainView
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.loop import Loop
from rlhf.types import Group, PolicyVersion, Updated, Written
from rlhf.weight_sync.publish import Publisher

PROBLEMS_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How a run ended: sampled `tokens`, `updates`, whether the target was reached, and the share of its groups whose
    rewards were equal."""

    tokens: int
    updates: int
    reached: bool
    equal_groups: float


class CountingLearner:
    """A learner that counts what was sampled for it."""

    def __init__(self, learner: RemoteLearner) -> None:
        self._learner = learner
        self.tokens, self.groups, self.equal = 0, 0, 0

    async def update(self, groups: Sequence[Group]) -> Updated:
        own = [group for group in groups if not group.second_use]
        self.tokens += sum(one.action_tokens for group in own for _, one, _ in group.trainable)
        self.groups += len(own)
        self.equal += sum(group.all_equal for group in own)
        return await self._learner.update(groups)

    async def snapshot(self, path: Path) -> Awaitable[Mapping[str, Written]]:
        return await self._learner.snapshot(path)

    async def load(self, path: Path) -> None:
        await self._learner.load(path)


@dataclass(frozen=True, slots=True)
class Bench:
    """What all runs of a task share."""

    learner: RemoteLearner
    serving: Serving
    publisher: Publisher
    start: Path

    async def run(self, recipe: Recipe, target: float) -> Reached:
        """Train with the recipe's order, replay and seed from the start weights, until the target is reached."""
        await self.learner.load(self.start)
        trainer, data = recipe.trainer, recipe.data
        rows = list(load_sets(data.train_sets).values())
        held_out = held_out_problems(data, load_sets(data.eval_sets), lambda task: 1, lambda words: None)
        evaluator = self.serving.evaluator(data, held_out, max_tokens=recipe.sampling.max_tokens, seed=PROBLEMS_SEED)
        assert evaluator is not None
        counting, reached = CountingLearner(self.learner), False

        async def boundary(version: PolicyVersion, updated: Updated | None) -> bool:
            nonlocal reached
            if updated is not None and version % trainer.eval_every == 0:
                reached = ((await evaluator(version)).reward or 0.0) >= target
            return reached

        loop = Loop(
            tasks=chosen_tasks(data, rows, recipe.seed, None),
            rollout=self.serving.rollout(
                recipe.sampling.sampling(), group_size=trainer.group_size, purpose="train", seed=recipe.seed
            ),
            buffer=make_buffer(trainer, None),
            learner=counting,
            weights=self.publisher,
            max_concurrent_groups=trainer.tickets,
        )
        await loop.run(trainer.updates, boundary)
        return Reached(
            tokens=counting.tokens,
            updates=loop.version,
            reached=reached,
            equal_groups=round(counting.equal / counting.groups, 3),
        )


@asynccontextmanager
async def started(recipe: Recipe, folder: Path) -> AsyncIterator[Bench]:
    """Start engine and rank on the recipe's start model, and save the start weights in `folder`."""
    view = PlainView((folder / "output.txt").open("w"))
    async with started_cluster(recipe.cluster, roles_of(recipe, fewer_engines=False), folder, view) as cluster:
        workers = await spawn_learners(recipe.cluster, cluster)
        model = await starting_model(recipe, workers, view)
        learner = make_learner(recipe, workers)
        await start_ranks(learner, recipe, model, view.message)
        async with started_serving(recipe, cluster, model, logs=folder, publishes=True, tell=view.message) as serving:
            publisher = await make_publisher(recipe, learner, serving, serving.facts.max_context_tokens)
            await learner.save(folder / "weights")
            yield Bench(learner, serving, publisher, folder / "weights")


def kept(file: Path) -> dict[str, Reached]:
    """Return the runs that are in a file already, by name."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {row.pop("run"): Reached(**row) for row in map(json.loads, lines)}
