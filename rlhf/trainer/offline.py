"""Recorded groups, sorted by how a policy can be trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlhf.errors import DataError
from rlhf.runs.recorded_episodes import recorded_groups
from rlhf.runs.records import EpisodeOutcome
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.credit.registry import needs_of
from rlhf.types import Group, Unscored

SERVED = EpisodeOutcome.SERVED.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The groups of a file: those to train on, in the order of ordinals; those whose rewards are all equal, where the
    recipe filters them; and those with too few trainable samples. `unrewarded` counts the sessions of a served policy
    that nobody rewarded; `baseline` says what episodes without a group are compared with, and why."""

    sound: tuple[Group, ...]
    filtered: tuple[Group, ...]
    failed: tuple[Group, ...]
    unrewarded: int = 0
    baseline: str = ""

    def describe(self) -> str:
        """Return the number of groups of each sort, in one line."""
        left_out = (
            (len(self.failed), "failed"),
            (len(self.filtered), "with equal rewards filtered"),
            (self.unrewarded, "sessions without a reward left out"),
        )
        excluded = "".join(f", {count} {why}" for count, why in left_out if count)
        return f"{len(self.sound)} recorded groups to learn from{excluded}" + (self.baseline and f"; {self.baseline}")


def read_recording(trainer: TrainerConfig, file: Path, *, sees: bool = False) -> Recording:
    """Return the groups of `file`, divided by how the recipe can use them. Raises `DataError` when none is left, when
    they lack what the estimator reads, or have images that are lost or, unless the model `sees`, not for it."""
    sound, filtered, failed = [], [], []
    needed = 2 if needs_of(trainer).siblings else 1
    recorded = recorded_groups(file, sees=sees)
    groups = [left for group in recorded if (left := _rewarded(group)).samples]
    unrewarded = sum(len(group.samples) for group in recorded) - sum(len(group.samples) for group in groups)
    alone = [group for group in groups if _is_alone(group)]
    baseline = _baseline(trainer, len(alone)) if alone else ""
    if needed == 2:
        groups = [group for group in groups if not _is_alone(group)] + _neighbours(alone, trainer.group_size)
    for group in sorted(groups, key=lambda one: one.ticket.ordinal):
        rewards = {score.value for _, _, score in group.trainable}
        if len(group.trainable) < max(needed, min(2, len(group.samples))):
            failed.append(group)
        elif trainer.filter.equal_rewards and len(rewards) == 1:
            filtered.append(group)
        else:
            sound.append(group)
    if not sound:
        told = f", {unrewarded} sessions without a reward (POST /sessions/ID/end takes it)" if unrewarded else ""
        raise DataError(
            f"{file} has no group to learn from: {len(failed)} failed, {len(filtered)} with equal rewards{told}"
        )
    if not any(trajectory.action_tokens for group in sound for _, trajectory, _ in group.trainable):
        raise DataError(
            f"{file} has no token to learn from: a grammar constrained every reply, and such replies are not trained; "
            "record again with rlhf serve policy --structured-outputs ignore, or with agents that force no reply"
        )
    if needs_of(trainer).baseline and any(group.baseline is None for group in sound):
        raise DataError(
            f"advantage.estimator {trainer.advantage.estimator} compares with a greedy episode, and groups of "
            f"{file} have none; it learns from runs with that estimator"
        )
    return Recording(
        sound=tuple(sound),
        filtered=tuple(filtered),
        failed=tuple(failed),
        unrewarded=unrewarded,
        baseline=baseline,
    )


def _rewarded(group: Group) -> Group:
    """Return a group without the sessions of a served policy that nobody rewarded."""
    kept = (one for one in group.samples if not (isinstance(one.score, Unscored) and one.score.kind == SERVED))
    return replace(group, samples=tuple(kept))


def _is_alone(group: Group) -> bool:
    return len(group.samples) == len(group.trainable) == 1


def _neighbours(alone: Sequence[Group], size: int) -> list[Group]:
    """Join groups of one episode, role by role, into groups of about `size` that were recorded one after another: the
    mean of each is a running baseline of its episodes, whatever their tasks."""
    roles: dict[str, list[Group]] = {}
    for group in alone:
        for _, trajectory, _ in group.trainable:
            roles.setdefault(trajectory.role, []).append(group)
    return [
        replace(those[part[0]], samples=tuple(those[n].samples[0] for n in part))
        for those in roles.values()
        for part in np.array_split(np.arange(len(those)), max(1, len(those) // size))
    ]


def _baseline(trainer: TrainerConfig, alone: int) -> str:
    """Say what `alone` episodes, each without a group, are compared with."""
    needs, estimator = needs_of(trainer), f"advantage.estimator {trainer.advantage.estimator}"
    if needs.siblings:
        return (
            f"{alone} episodes have no other of their group, so their baseline is the mean reward of about "
            f"{trainer.group_size} recorded one after another: {estimator} compares, and a session that names its task "
            "or group is compared within it"
        )
    if needs.values:
        return f"{alone} episodes have no other of their group: their baseline is the critic's value ({estimator})"
    return f"{alone} episodes have no other of their group: {estimator} needs none"


def check_fit(recording: Recording, file: Path, *, vocab_size: int, context_tokens: int) -> None:
    """Check that the tokens are in the model's vocabulary, and that no context exceeds the model's. Raises
    `DataError`."""
    for group in recording.sound:
        for _, trajectory, _ in group.trainable:
            for segment in trajectory.segments:
                if len(segment.token_ids) > context_tokens:
                    raise DataError(
                        f"{file} has an episode of {len(segment.token_ids)} tokens, longer than the model's context of "
                        f"{context_tokens}; start from the model that sampled it"
                    )
                if segment.token_ids.max() >= vocab_size:
                    raise DataError(
                        f"{file} has token {segment.token_ids.max()}, but the model knows {vocab_size} tokens; start "
                        "from a model with the vocabulary of the one that sampled it"
                    )
