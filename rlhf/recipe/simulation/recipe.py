"""The workload and the setting of a recipe: from a recorded run, or from its plan."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, log
from pathlib import Path

from rlhf.recipe.loading import load_recipe
from rlhf.recipe.planning.estimate import Estimate
from rlhf.recipe.planning.layout import SEQUENCES, engine_layouts
from rlhf.recipe.planning.rates import Range
from rlhf.recipe.planning.times import places, reading, step_seconds, trained_tokens
from rlhf.recipe.schema import Recipe
from rlhf.recipe.simulation.recorded import RecordedTimes, recorded_times
from rlhf.recipe.simulation.run import Prediction, predict
from rlhf.recipe.simulation.workload import Durations, EpisodeWork, GroupWork, Setting, StepSeconds, Trouble, Workload
from rlhf.recipe.workers import engine_device, engine_roles
from rlhf.runs.stored_run import read_run

GROUPS = 256
"""Groups whose lengths are drawn for a plan, and then played again and again."""
RESTART_SECONDS = Range(low=60.0, high=240.0)
"""A guess: an engine loads a model and compiles its kernels."""
COUNTED = 6
"""Updates whose mean is predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A recorded run: the seconds of its mean update, and those that are predicted for its own settings."""

    measured: float
    predicted: float
    durations: Durations


def setting_of(recipe: Recipe, *, running: int, cores: float = inf) -> Setting:
    """Return the setting of a recipe whose engines run so many sequences at once. On CPUs workers share `cores`."""
    trainer, (engine, *_) = recipe.trainer, engine_roles(recipe)
    return Setting(
        groups_per_update=trainer.groups_per_update,
        max_staleness=trainer.max_staleness,
        refill_groups=trainer.refill_groups,
        concurrent_groups=recipe.rollout.max_concurrent_groups or trainer.tickets,
        engines=len(recipe.rollout.tensor_parallel_sizes),
        places=running,
        cores=cores if engine_device(recipe) == "cpu" else inf,
        engine_threads=engine.threads,
        learner_threads=trainer.deepspeed.ranks * max(1, int(trainer.deepspeed.cpus_per_rank)),
    )


def predicted_from_run(recipe: Recipe, path: Path, cores: float, trouble: Trouble) -> tuple[Prediction, Comparison]:
    """Predict a recipe from the durations of a run on the same kind of machine, perhaps with other numbers of engines
    and ranks, staleness or batches. Raises `UserError` for what is no run."""
    folder = read_run(path).folder
    before = load_recipe(folder.recipe).recipe
    found = recorded_times(folder, places=_sequences(before), chunk=engine_layouts(before)[0].batched_tokens)
    # What ran beside each other has recorded what it took from the other.
    shared = cores if before.trainer.max_staleness == 0 else inf
    own = _of_run(before, before, found, shared, Trouble())
    compared = Comparison(
        measured=found.update_seconds, predicted=own.update_seconds, durations=found.workload.durations
    )
    return _of_run(recipe, before, found, shared, trouble), compared


def _of_run(recipe: Recipe, before: Recipe, found: RecordedTimes, cores: float, trouble: Trouble) -> Prediction:
    ranks = before.trainer.deepspeed.ranks / recipe.trainer.deepspeed.ranks
    durations = replace(found.workload.durations, train_token=found.workload.durations.train_token * ranks)
    setting = setting_of(recipe, running=_sequences(recipe), cores=cores)
    return predict(replace(found.workload, durations=durations), setting, trouble, updates=COUNTED)


def _sequences(recipe: Recipe) -> int:
    return recipe.rollout.max_sequences or SEQUENCES[engine_device(recipe)]


def predicted_from_plan(
    recipe: Recipe, found: Estimate, mean_tokens: int | None, cores: float, trouble: Trouble
) -> Mapping[str, Prediction]:
    """Predict a recipe by the rates of its plan, at both of their ends. Replies have their full length, or lengths from
    a lognormal distribution of this mean."""
    layout, run = found.run.engines[0], found.run
    running = places(run, layout, found.cache_tokens[0])
    groups = list(drawn_groups(run.prompt, run.reply, run.replies, mean_tokens))
    setting = setting_of(recipe, running=running, cores=cores)
    return {
        name: predict(
            Workload(groups=groups, durations=_durations(found, running, name)), setting, trouble, updates=COUNTED
        )
        for name in ("low", "high")
    }


def _durations(found: Estimate, running: int, end: str) -> Durations:
    """Return the durations of a plan at one end of its ranges."""
    shape, run, rates, times = found.shape, found.run, found.rates, found.times
    layout = run.engines[0]

    def at(seconds: Range) -> float:
        return seconds.low if end == "low" else seconds.high

    alone, all = (at(step_seconds(shape, run, layout, rates, count)) for count in (1, max(running, 2)))
    sequence = (all - alone) / max(running - 1, 1)
    step = StepSeconds(
        fixed=alone - sequence,
        sequence=sequence,
        prompt_token=at(reading(shape, layout, rates, 1)),
        chunk=layout.batched_tokens,
    )
    return Durations(
        step=step,
        train_token=at(times.learning) / trained_tokens(run),
        weight_sync=at(times.weight_sync),
        rest=at(times.rest),
        restart=at(RESTART_SECONDS),
    )


def drawn_groups(prompt: int, reply: int, replies: int, mean_tokens: int | None) -> Iterator[GroupWork]:
    """Iterate over groups with replies of at most `reply` tokens."""
    draw = random.Random(0)
    for _ in range(GROUPS if mean_tokens else 1):
        lengths = [
            min(max(round(draw.lognormvariate(log(mean_tokens) - 0.5, 1.0)), 1), reply) if mean_tokens else reply
            for _ in range(replies)
        ]
        yield GroupWork(episodes=tuple(EpisodeWork(prompt_tokens=prompt, tokens=tokens) for tokens in lengths))
