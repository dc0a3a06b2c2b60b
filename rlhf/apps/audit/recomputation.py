"""What an update and an evaluation give, computed again from their records by the code that computed it first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.config import is_piece
from rlhf.errors import DataError
from rlhf.recipe.schema import Recipe
from rlhf.rollout.evaluation import Evaluation, result_of
from rlhf.runs.recorded_episodes import groups_of
from rlhf.runs.records import EpisodeRecord
from rlhf.trainer.batching.batch import build_batch
from rlhf.trainer.credit.advantages import with_advantages
from rlhf.trainer.credit.registry import needs_of
from rlhf.trainer.credit.rewards import shuffled_rewards
from rlhf.trainer.credit.statistics import batch_statistics, trained_statistics
from rlhf.types import Group

UNRECORDED = {"response/out_of_time"}
"""Statistics that need more than records."""
OF_ALL = ("samples/lost", "replay/")
"""Beginnings of the names of statistics that are of no policy."""
Advantages = Mapping[tuple[int, int], NDArray[np.float32]]
"""By ordinal and sample, `[A]` over the sampled tokens."""


def metrics_again(
    groups: Sequence[Group], records: Sequence[EpisodeRecord], recipe: Recipe, update: int
) -> dict[str, float]:
    """Return the metrics of the update that trained `groups`, of these records of trained episodes; of several policies
    also those of each. Those of the learner's pass follow from records where it is the only one, without second
    uses."""
    trained = trained_statistics(groups, {(one.ordinal, one.sample) for one in records})
    found = {"replay/groups": 0.0} | batch_statistics(groups, version=update - 1) | trained
    known = {name: value for name, value in found.items() if name not in UNRECORDED}
    if recipe.policies:
        for policy in recipe.trained_policies:
            part = [replace(group, policy=policy) for group in groups]
            own = [one for one in records if one.policy == policy]
            again = metrics_again(part, own, recipe.of_policy(policy), update)
            known |= {f"{policy}/{name}": value for name, value in again.items() if not name.startswith(OF_ALL)}
        return known
    passes = [one for one in records if one.proximal_logprobs is not None and np.isfinite(one.proximal_logprobs).any()]
    if (
        any(group.second_use for group in groups)
        or recipe.trainer.epochs * recipe.trainer.minibatches > 1
        or not passes
    ):
        return known
    learner, engine = (
        _joined(one.proximal_logprobs for one in passes),
        _joined(one.behaviour_logprobs for one in passes),
    )
    sampled, versions = np.isfinite(learner), _joined(one.versions for one in passes)
    fresh = np.abs(learner - engine)[sampled & (versions == update - 1)]
    largest = {"policy/logprob_difference_max": float(fresh.max(initial=0.0))}
    mean = {"policy/logprob_difference": float(fresh.mean())} if fresh.size else {}
    return known | mean | largest | {"policy/entropy": float(_joined(one.entropies for one in passes)[sampled].mean())}


def advantages_again(groups: Sequence[Group], recipe: Recipe) -> Advantages:
    """Return the advantages of the update of all `groups`; none where they need more than rewards."""
    if recipe.policies:
        found: dict[tuple[int, int], NDArray[np.float32]] = {}
        for policy in recipe.trained_policies:
            part = [replace(group, policy=policy) for group in groups]
            found |= advantages_again(part, recipe.of_policy(policy))
        return found
    trainer, needs = recipe.trainer, needs_of(recipe.trainer)
    priced = trainer.kl.coefficient > 0 and trainer.kl.place == "reward"
    if needs.values or needs.proximal or needs.reference or priced or is_piece(trainer.advantage.estimator):
        return {}
    dealt = groups
    if trainer.shuffle_rewards:
        dealt = shuffled_rewards(groups, seed=recipe.seed + groups[0].ticket.ordinal)
    batch = build_batch(dealt, overlong=trainer.overlong, max_tokens=recipe.sampling.max_tokens)
    batch, _ = with_advantages(batch, trainer, 0.0)
    return dict(zip(batch.samples, batch.per_sample(batch.advantages), strict=True))


def evaluation_again(
    records: Sequence[EpisodeRecord], recipe: Recipe, part: Path, reread: Callable[[Group], Group]
) -> Evaluation:
    """Return the evaluation of one part, with images as `reread` reads them. Raises `DataError` for records that give
    none."""
    sets = {
        name: [*map(reread, groups_of([one for one in records if one.evaluation_set == name], part))]
        for name in recipe.data.eval_sets
    }
    for name, groups in sets.items():
        config = recipe.data.eval_sets[name]
        needed = max((1, *config.pass_at, *config.majority_at))
        if not groups or any(len(one.samples) % config.samples or len(one.trainable) < needed for one in groups):
            raise DataError(f"{part} lacks episodes of {name}")
    return Evaluation(sets=tuple(result_of(name, recipe.data.eval_sets[name], groups) for name, groups in sets.items()))


def _joined(columns: Iterable[NDArray[Any] | None]) -> NDArray[Any]:
    return np.concatenate([column for column in columns if column is not None])
