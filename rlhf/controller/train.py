"""Train one run from its recipe to its summary: start its workers and its kind, and run the updates."""

from __future__ import annotations

from contextlib import AsyncExitStack

from rlhf.cluster.watch import while_alive
from rlhf.cluster.worker import Cluster
from rlhf.controller.build import started_cluster
from rlhf.controller.callbacks import Checkpoints, Evaluations, Preemption, Reports
from rlhf.controller.context import RunContext
from rlhf.controller.rl import start_rl
from rlhf.controller.run import Callback, Run
from rlhf.controller.supervised import start_supervised
from rlhf.controller.user_callbacks import user_callbacks
from rlhf.recipe.workers import roles_of
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.loggers import make_loggers
from rlhf.runs.summary import Summary


async def train_recipe(context: RunContext, callbacks: tuple[Callback, ...] = ()) -> Summary:
    """Train the recipe; all results are in the run folder when it returns, and when it raises."""
    recipe = context.recipe
    own = user_callbacks(recipe.callbacks, callbacks)
    async with started_cluster(recipe.cluster, roles_of(recipe), context.folder.logs, context.view) as cluster:
        return await while_alive(cluster, _train_on(cluster, context, own))


async def _train_on(cluster: Cluster, context: RunContext, own: tuple[Callback, ...]) -> Summary:
    context.view.phase("start")
    async with AsyncExitStack() as stack:
        start = start_rl if context.recipe.plays else start_supervised
        kind, began = await start(context, cluster, stack)
        callbacks = (Preemption(), Checkpoints(), *own, Evaluations(), reports(context), *kind.callbacks)
        return await Run(context, kind, callbacks, began=began).finish()


def reports(context: RunContext) -> Reports:
    recipe, folder = context.recipe, context.folder
    loggers = make_loggers(recipe.run.loggers, folder, recipe.name, recipe.model_dump(mode="json"))
    return Reports(loggers, JsonlWriter(folder.spans, may_write=folder.check))
