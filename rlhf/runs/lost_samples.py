"""Why samples were lost: their failures, told apart by kind and place, and the commonest one as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from rlhf.errors import place_of
from rlhf.types import Failed, Filtered, Group, Sample, Unscored

Failure = Failed | Unscored


class Reason(NamedTuple):
    """What failures have in common: their kind, and the line of foreign code that raised them if there is one."""

    kind: str
    place: str


def reason_of(failure: Failure) -> Reason:
    """Return the reason of a failure."""
    return Reason(failure.kind, place_of(failure.detail))


def samples_of(outcome: Group | Filtered | Failed) -> tuple[Sample, ...]:
    """Return the samples of a group, whatever became of it."""
    return outcome.group.samples if isinstance(outcome, Filtered) else outcome.samples


def failures_of(outcome: Group | Filtered | Failed) -> list[Failure]:
    """Return the failure of every lost sample of a group; that of the group if no sample of it failed."""
    found = [failure for sample in samples_of(outcome) if (failure := sample.failure)]
    return found or ([outcome] if isinstance(outcome, Failed) else [])


def commonest_failure(failures: Iterable[Failure]) -> str:
    """Return the first failure of the commonest reason as text: `raised: KeyError: 'answer' (at my_reward.py:7)`."""
    first: dict[Reason, Failure] = {}
    counts: Counter[Reason] = Counter()
    for failure in failures:
        reason = reason_of(failure)
        first.setdefault(reason, failure)
        counts[reason] += 1
    if not counts:
        return ""
    failure = first[counts.most_common(1)[0][0]]
    return f"{failure.kind}: {failure.detail}" if failure.detail else failure.kind
