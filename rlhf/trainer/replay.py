"""Second uses of groups: those whose rewards differ are trained once more in a later update.

The second update weighs their tokens as it weighs those of a stale group, by the log-probs of the engine that sampled
them (`proximal_logprobs`; off-policy replay: ACER, arXiv 1611.01224, and for GRPO arXiv 2506.09340).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rlhf.trainer.config import ReplayConfig
from rlhf.types import Group, Sample, Trajectory

MAX_AGE = 4
"""Largest number of updates between the two uses of a group: its tokens are stale by at most `max_staleness` and
this."""
Waiting = tuple[tuple[int, int], ...]
"""`(update, ordinal)` of groups that wait for their second use, with the update that trained them first."""


class GroupReplay:
    """Groups that wait for their second use, each with the update that trained it first."""

    def __init__(self, config: ReplayConfig, waiting: Iterable[tuple[int, Group]] = ()) -> None:
        self._config, self._groups = config, list(waiting)

    def second_uses(self, trained: Sequence[Group], update: int) -> list[Group]:
        """Return the groups that `update` uses a second time; those that it has `trained` wait from then on.

        The newest come first, and of one update those whose rewards differ most.
        """
        young = [(first, group) for first, group in self._groups if update - first <= MAX_AGE]
        young.sort(key=lambda one: (-one[0], -one[1].reward_variance, one[1].ticket.ordinal))
        chosen, left = young[: self._config.groups], young[self._config.groups :]
        if self._config.groups:
            self._groups = left + [(update, group) for group in trained if group.reward_variance > 0]
        return [as_second_use(group) for _, group in chosen]

    @property
    def held(self) -> tuple[tuple[int, Group], ...]:
        """The groups that wait for their second use, each with the update that trained it first."""
        return tuple(self._groups)

    @property
    def waiting(self) -> Waiting:
        return tuple((update, group.ticket.ordinal) for update, group in self._groups)


def as_second_use(group: Group) -> Group:
    """Return a group for its second use. The learner chooses its experts itself: the engine's are of older weights."""
    return replace(group, second_use=True, samples=tuple(map(_without_routing, group.samples)))


def _without_routing(sample: Sample) -> Sample:
    if not isinstance(sample.trajectory, Trajectory):
        return sample
    segments = tuple(replace(segment, routing=None) for segment in sample.trajectory.segments)
    return replace(sample, trajectory=replace(sample.trajectory, segments=segments))
