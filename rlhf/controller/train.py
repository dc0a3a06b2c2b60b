"""Train one run from its recipe to its summary: start its workers and its kind, and run the updates."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from rlhf.cluster.watch import while_alive
from rlhf.cluster.worker import Cluster
from rlhf.controller.build import started_cluster
from rlhf.controller.callbacks import Checkpoints, Evaluations, Preemption, Reports, show_phase
from rlhf.controller.context import RunContext
from rlhf.controller.rl import start_rl
from rlhf.controller.run import Callback, Run
from rlhf.controller.supervised import start_supervised
from rlhf.controller.user_callbacks import user_callbacks
from rlhf.http.binding import token_from
from rlhf.recipe.workers import roles_of
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.loggers import LoggedRun, Logger, make_loggers
from rlhf.runs.summary import Summary
from rlhf.runs.trace_export import exporting


async def train_recipe(context: RunContext, callbacks: tuple[Callback, ...] = ()) -> Summary:
    """Train the recipe; all results are in the run folder when it returns, and when it raises."""
    recipe = context.recipe
    own = user_callbacks(recipe.callbacks, callbacks)
    roles = roles_of(recipe, fewer_engines=context.attempt.restart is not None)
    async with (
        context.attempt.watched(context.folder.logs / "controller.log"),
        started_cluster(recipe.cluster, roles, context.folder.logs, context.view) as cluster,
    ):
        return await while_alive(cluster, _train_on(cluster, context, own))


async def _train_on(cluster: Cluster, context: RunContext, own: tuple[Callback, ...]) -> Summary:
    context.view.phase("start")
    async with AsyncExitStack() as stack:
        gauges = await started_gauges(context, stack)
        recipe, clock, view = context.recipe, context.clock, context.view
        otlp = recipe.run.otlp
        stack.enter_context(exporting("controller", otlp, clock=clock, run=recipe.name, tell=view.message))
        clock.shows = partial(show_phase, view)
        clock.begin_trace("start")
        start = start_rl if context.recipe.plays else start_supervised
        kind, began = await start(context, cluster, stack)
        callbacks = (
            Preemption(), Checkpoints(), *kind.callbacks, *own, Evaluations(), reports(context, *gauges),
        )  # fmt: skip
        return await Run(context, kind, callbacks, began=began).finish()


async def started_gauges(context: RunContext, stack: AsyncExitStack) -> tuple[Logger, ...]:
    """Start the server for Prometheus, if the recipe has one, and return its logger. Raises `UserError`."""
    config = context.recipe.run.prometheus
    if config.port is None:
        return ()
    from rlhf.runs.prometheus import Gauges, scraped

    gauges, token = Gauges(context.recipe.name), token_from(config.token_env)
    url = await stack.enter_async_context(scraped(gauges, host=config.host, port=config.port, token=token))
    context.view.message(f"metrics for Prometheus: {url}/metrics")
    return (gauges,)


def reports(context: RunContext, *direct: Logger) -> Reports:
    recipe, folder = context.recipe, context.folder
    run = LoggedRun(folder, recipe.name, recipe.model_dump(mode="json"))
    loggers = make_loggers(recipe.run.loggers, run, context.view.message, direct)
    return Reports(loggers, JsonlWriter(folder.spans, may_write=folder.check), recipe.run.table_every)
