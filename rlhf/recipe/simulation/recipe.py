"""Predictions for a recipe: by the durations of a recorded run, or by those of its plan."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf, log
from pathlib import Path

from rlhf.recipe.loading import load_recipe
from rlhf.recipe.planning.estimate import Estimate
from rlhf.recipe.planning.layout import SEQUENCES
from rlhf.recipe.planning.rates import Range
from rlhf.recipe.planning.times import places, reading, step_seconds, trained_tokens
from rlhf.recipe.schema import Recipe
from rlhf.recipe.simulation.recorded import RecordedTimes, recorded_times
from rlhf.recipe.simulation.run import Durations, EpisodeWork, GroupWork, Prediction, Trouble, predict
from rlhf.recipe.workers import engine_device
from rlhf.runs.stored_run import read_run

GROUPS = 256
"""Groups whose lengths are drawn for a plan, and then played again and again."""
RESTART_SECONDS = Range(low=60.0, high=240.0)
"""A guess: an engine loads a model and compiles its kernels."""
COUNTED = 6
"""Updates whose mean is predicted."""


def predicted_from_run(
    recipe: Recipe, path: Path, cores: float, trouble: Trouble
) -> tuple[Prediction, Prediction, RecordedTimes]:
    """Predict a recipe from the durations of a run on the same kind of machine, perhaps with other numbers of engines
    and ranks, staleness or batches; and the run itself, without trouble. Raises `UserError` for what is no run."""
    folder = read_run(path).folder
    before = load_recipe(folder.recipe).recipe
    found = recorded_times(folder, places=_sequences(before))
    if before.trainer.max_staleness:
        cores = inf  # what ran beside each other has recorded what it took from the other

    def prediction(of: Recipe, trouble: Trouble) -> Prediction:
        ranks = before.trainer.deepspeed.ranks / of.trainer.deepspeed.ranks
        durations = replace(found.durations, train_token=found.durations.train_token * ranks)
        return predict(of, found.groups, durations, trouble, places=_sequences(of), cores=cores, updates=COUNTED)

    return prediction(recipe, trouble), prediction(before, Trouble()), found


def _sequences(recipe: Recipe) -> int:
    return recipe.rollout.max_sequences or SEQUENCES[engine_device(recipe)]


def predicted_from_plan(
    recipe: Recipe, found: Estimate, mean_tokens: int | None, cores: float, trouble: Trouble
) -> Mapping[str, Prediction]:
    """Predict a recipe by the rates of its plan, at both of their ends. Replies have their full length, or lengths from
    a lognormal distribution of this mean."""
    layout, run, shape, times = found.run.engines[0], found.run, found.shape, found.times
    running = places(run, layout, found.cache_tokens[0])
    groups = list(drawn_groups(run.prompt, run.reply, run.replies, mean_tokens))

    def prediction(end: str) -> Prediction:
        def at(seconds: Range) -> float:
            return seconds.low if end == "low" else seconds.high

        alone, all = (at(step_seconds(shape, run, layout, found.rates, count)) for count in (1, max(running, 2)))
        sequence = (all - alone) / max(running - 1, 1)
        durations = Durations(
            step=alone - sequence, sequence=sequence, prompt_token=at(reading(shape, layout, found.rates, 1)),
            train_token=at(times.learning) / trained_tokens(run), weight_sync=at(times.weight_sync),
            rest=at(times.rest), restart=at(RESTART_SECONDS),
        )  # fmt: skip
        return predict(recipe, groups, durations, trouble, places=running, cores=cores, updates=COUNTED)

    return {end: prediction(end) for end in ("low", "high")}


def drawn_groups(prompt: int, reply: int, replies: int, mean_tokens: int | None) -> Iterator[GroupWork]:
    """Iterate over groups with replies of at most `reply` tokens."""
    draw = random.Random(0)
    for _ in range(GROUPS if mean_tokens else 1):
        lengths = [
            min(max(round(draw.lognormvariate(log(mean_tokens) - 0.5, 1.0)), 1), reply) if mean_tokens else reply
            for _ in range(replies)
        ]
        yield GroupWork(episodes=tuple(EpisodeWork(prompt_tokens=prompt, tokens=tokens) for tokens in lengths))
