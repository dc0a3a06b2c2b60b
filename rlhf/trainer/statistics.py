"""What a batch of groups looks like in numbers, for people. Pure functions; nothing here is trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf.types import Group, PolicyVersion, Status


def batch_statistics(groups: Sequence[Group], *, version: PolicyVersion) -> dict[str, float]:
    """Reward, length, truncation and staleness of the groups that update `version` → `version + 1` trains on.

    Staleness of a token is the learner's version minus the version that sampled it.
    """
    trained = [item for group in groups for item in group.trainable]
    rewards = np.array([score.value for _, _, score in trained], dtype=np.float64)
    lengths = np.array([trajectory.action_tokens for _, trajectory, _ in trained], dtype=np.float64)
    truncated = np.array([trajectory.status is Status.TRUNCATED for _, trajectory, _ in trained], dtype=np.float64)
    versions = np.concatenate(
        [segment.versions[segment.action_mask] for _, trajectory, _ in trained for segment in trajectory.segments]
    )
    return {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "reward/equal_groups": float(np.mean([_equal(group) for group in groups])),
        "response/tokens_mean": float(lengths.mean()),
        "response/tokens_max": float(lengths.max()),
        "response/truncated": float(truncated.mean()),
        "staleness/mean": float((version - versions).mean()),
        "staleness/max": float((version - versions).max()),
        "samples/trained": float(len(trained)),
        "samples/lost": float(sum(len(group.samples) for group in groups) - len(trained)),
        "tokens/trained": float(lengths.sum()),
    }


def _equal(group: Group) -> bool:
    return len({score.value for _, _, score in group.trainable}) <= 1
