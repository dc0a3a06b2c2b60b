"""Statistics of a batch of groups, for logging. Pure functions; training does not read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

import numpy as np

from rlhf.types import EpisodeStatus, Group, PolicyVersion, Scored, Segment, Trajectory

REPEATED_TOKENS = 4
"""Length of the n-grams whose repetition is measured."""


def batch_statistics(groups: Sequence[Group], *, version: PolicyVersion | None) -> dict[str, float]:
    """Reward, responses and staleness of the groups that update `version` → `version + 1` trains on.

    Staleness of a token is the learner's version minus the version that sampled it; without a `version`, groups are of
    another run, and have none. A metric without any applicable episode is left out, and so are second uses of groups:
    they are no new samples.
    """
    groups = [group for group in groups if not group.second_use]
    trained = [item for group in groups for item in group.trainable]
    trajectories = [trajectory for _, trajectory, _ in trained]
    lost = losses_by_kind(groups) | {"samples/lost": float(sum(len(group.samples) for group in groups) - len(trained))}
    if not trained:
        return lost
    return {
        **reward_statistics(groups),
        **response_statistics(trajectories),
        **environment_statistics(trajectories),
        **(staleness_statistics(trajectories, version) if version is not None else {}),
        **lost,
    }


def staleness_statistics(trajectories: Sequence[Trajectory], version: PolicyVersion) -> dict[str, float]:
    versions = np.concatenate(
        [segment.versions[segment.action_mask] for trajectory in trajectories for segment in trajectory.segments]
    )
    return {
        "staleness/mean": float((version - versions).mean()),
        "staleness/max": float((version - versions).max()),
    }


def trained_statistics(groups: Sequence[Group], trained: Collection[tuple[int, int]]) -> dict[str, float]:
    """Count the samples and tokens that an update of `groups` trained, and apart from them the second uses. `trained`
    has the ordinals and indices of its samples: `trainer.kl.stop` may end an update before it reaches all of them."""
    used = [
        (group, trajectory)
        for group in groups
        for index, trajectory, _ in group.trainable
        if (group.ticket.ordinal, index) in trained
    ]
    tokens = [trajectory.action_tokens for group, trajectory in used if not group.second_use]
    again = [group.ticket.ordinal for group, _ in used if group.second_use]
    return {"samples/trained": float(len(tokens)), "tokens/trained": float(sum(tokens))} | (
        {"replay/groups": float(len(set(again))), "replay/samples": float(len(again))} if again else {}
    )


def reward_statistics(groups: Sequence[Group]) -> dict[str, float]:
    """Statistics over all samples, and for each role where there are several; greedy baselines have a separate mean."""
    rewards = np.array([score.value for group in groups for _, _, score in group.trainable], dtype=np.float64)
    scores = [group.baseline.score for group in groups if group.baseline]
    baselines = [score.value for score in scores if isinstance(score, Scored)]
    by_role = [(role, values) for group in groups for role, values in group.rewards_by_role.items()]
    compared = [group.all_equal for group in groups if max(map(len, group.rewards_by_role.values()), default=0) > 1]
    roles = dict.fromkeys(role for role, _ in by_role) if len({role for role, _ in by_role}) > 1 else ()
    return (
        {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std())}
        | ({"reward/equal_groups": float(np.mean(compared))} if compared else {})
        | {f"reward/{role}": float(np.mean([v for one, vs in by_role if one == role for v in vs])) for role in roles}
        | ({"reward/greedy_baseline": float(np.mean(baselines))} if baselines else {})
    )


def response_statistics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Length in ACTION tokens, the share that reached the token limit, and how much the responses repeat themselves."""
    lengths = np.array([trajectory.action_tokens for trajectory in trajectories], dtype=np.float64)
    truncated = np.array([trajectory.status is EpisodeStatus.TRUNCATED for trajectory in trajectories], dtype=bool)
    repetitions = [share for trajectory in trajectories if (share := repetition(trajectory)) is not None]
    return (
        {
            "response/tokens_mean": float(lengths.mean()),
            "response/tokens_max": float(lengths.max()),
            "response/truncated": float(truncated.mean()),
            "response/out_of_time": float(np.mean([trajectory.out_of_time for trajectory in trajectories])),
        }
        | ({"response/truncated_tokens_mean": float(lengths[truncated].mean())} if truncated.any() else {})
        | ({"response/repetition": float(np.mean(repetitions))} if repetitions else {})
    )


def environment_statistics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """For episodes with an environment only: turns and malformed tool calls per episode, the seconds that an episode
    waited for its environment, and the `tool_errors` that an environment counts in its info."""
    played = [trajectory for trajectory in trajectories if trajectory.conversation]
    if not played:
        return {}
    ends = [trajectory.env_info[-1] for trajectory in played if trajectory.env_info]
    errors = [float(end["tool_errors"]) for end in ends if "tool_errors" in end]
    side = [sum(len(part.turns) for part in trajectory.segments) - trajectory.turns for trajectory in played]
    return ({"environment/tool_errors_mean": float(np.mean(errors))} if errors else {}) | {
        "environment/side_calls_mean": float(np.mean(side)),
        "environment/turns_mean": float(np.mean([trajectory.turns for trajectory in played])),
        "environment/malformed_calls_mean": float(np.mean([trajectory.malformed_calls for trajectory in played])),
        "environment/seconds_mean": float(np.mean([episode.timings.environment_seconds for episode in played])),
    }


def losses_by_kind(groups: Sequence[Group]) -> dict[str, float]:
    """Count the samples of the groups without a score, by the kind of failure, and those scored because their scorer
    failed."""
    kinds = Counter(kind for group in groups for sample in group.samples if (kind := sample.failure_kind))
    valued = Counter(score.failure for group in groups for _, _, score in group.trainable if score.failure)
    return {f"samples/lost/{kind}": float(count) for kind, count in sorted(kinds.items())} | {
        f"samples/scorer_failed/{kind}": float(count) for kind, count in sorted(valued.items())
    }


def repetition(trajectory: Trajectory, length: int = REPEATED_TOKENS) -> float | None:
    """Return the share of an episode's n-grams of ACTION tokens that occurred before: `1 - different / all`,
    `seq-rep-n` of arXiv 1908.04319.

    An n-gram lies within one turn: the environment's tokens separate turns. None when no turn has `length` tokens.
    """
    grams = [
        gram for turn in _turns(trajectory.segments) for gram in zip(*(turn[n:] for n in range(length)), strict=False)
    ]
    return 1.0 - len(set(grams)) / len(grams) if grams else None


def _turns(segments: Sequence[Segment]) -> Iterator[list[int]]:
    """Iterate over the runs of ACTION tokens, one after another."""
    for segment in segments:
        places = np.flatnonzero(segment.action_mask)
        tokens = segment.token_ids[places].tolist()
        starts = [0, *(np.flatnonzero(places[1:] - places[:-1] > 1) + 1).tolist(), len(tokens)]
        yield from (tokens[start:stop] for start, stop in pairwise(starts))
