"""Recorded groups, sorted by how a policy can be trained on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlhf.errors import DataError
from rlhf.runs.recorded_episodes import recorded_groups
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.credit.registry import needs_of
from rlhf.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The groups of a file: those to train on, in the order of ordinals; those whose rewards are all equal, where the
    recipe filters them; and those with too few trainable samples."""

    sound: tuple[Group, ...]
    filtered: tuple[Group, ...]
    failed: tuple[Group, ...]

    def describe(self) -> str:
        """Return the number of groups of each sort, in one line."""
        left_out = ((len(self.failed), "failed"), (len(self.filtered), "with equal rewards filtered"))
        excluded = "".join(f", {count} {why}" for count, why in left_out if count)
        return f"{len(self.sound)} recorded groups to learn from{excluded}"


def read_recording(trainer: TrainerConfig, file: Path) -> Recording:
    """Return the groups of `file`, divided by how the recipe can use them. Raises `DataError` when none is left, or
    when they lack what the estimator reads."""
    sound, filtered, failed = [], [], []
    needed = 2 if needs_of(trainer).siblings else 1
    for group in recorded_groups(file):
        rewards = {score.value for _, _, score in group.trainable}
        if len(group.trainable) < max(needed, min(2, len(group.samples))):
            failed.append(group)
        elif trainer.filter.equal_rewards and len(rewards) == 1:
            filtered.append(group)
        else:
            sound.append(group)
    if not sound:
        raise DataError(f"{file} has no group to learn from: {len(failed)} failed, {len(filtered)} with equal rewards")
    if needs_of(trainer).baseline and any(group.baseline is None for group in sound):
        raise DataError(
            f"advantage.estimator {trainer.advantage.estimator} compares with a greedy episode, and groups of "
            f"{file} have none; it learns from runs with that estimator"
        )
    return Recording(sound=tuple(sound), filtered=tuple(filtered), failed=tuple(failed))


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
