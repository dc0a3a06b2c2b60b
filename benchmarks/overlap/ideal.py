"""The quickest run that recorded durations allow. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf.recipe.simulation.workload import EpisodeWork, GroupWork


@dataclass(frozen=True, kw_only=True)
class BatchSeconds:
    """What one update took: sampling, summed over the replies of its groups, and training."""

    sampled: float
    trained: float


def ideal_seconds(batches: Sequence[BatchSeconds], places: int) -> float:
    """Return the time of these updates if one of the two never waited: the learner, or all places of the engines."""
    return max(sum(one.trained for one in batches), sum(one.sampled for one in batches) / places)


def by_batch(sampled: Mapping[str, float], trained: Sequence[float], groups: int) -> list[BatchSeconds]:
    """Sort the seconds of sessions in engines by update, of so many groups each."""
    batches = [0.0 for _ in trained]
    for session, seconds in sampled.items():
        batches[ordinal(session) // groups] += seconds
    return [BatchSeconds(sampled=one, trained=seconds) for one, seconds in zip(batches, trained, strict=True)]


def works(
    sampled: Mapping[str, float], waited: Mapping[str, float], turns: int, token_seconds: float
) -> list[GroupWork]:
    """Return the groups in their order, as `rlhf.recipe.simulation` plays them."""
    episodes: dict[int, list[EpisodeWork]] = {}
    for session, seconds in sampled.items():
        work = EpisodeWork(
            prompt_tokens=0, tokens=round(seconds / token_seconds), turns=turns,
            environment_seconds=waited.get(session, 0.0),
        )  # fmt: skip
        episodes.setdefault(ordinal(session), []).append(work)
    return [GroupWork(episodes=tuple(episodes[number])) for number in sorted(episodes)]


def ordinal(session: str) -> int:
    """Return the ordinal of a session's group."""
    return int(session.split("-")[1])
