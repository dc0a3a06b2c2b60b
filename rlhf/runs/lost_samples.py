"""Why samples were lost: their failures by kind and place, and the commonest one as text."""

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


class FailureCounts:
    """Counts failures by reason, and keeps the first of each."""

    def __init__(self, failures: Iterable[Failure] = ()) -> None:
        self._first: dict[Reason, Failure] = {}
        self._counts: Counter[Reason] = Counter()
        for failure in failures:
            self.add(failure)

    def add(self, failure: Failure) -> None:
        """Count one failure."""
        reason = reason_of(failure)
        self._first.setdefault(reason, failure)
        self._counts[reason] += 1

    @property
    def commonest(self) -> str:
        """The first failure of the commonest reason: `raised: KeyError: 'answer' (at my_reward.py:7)`; empty without
        any."""
        for reason, _ in self._counts.most_common(1):
            failure = self._first[reason]
            return f"{failure.kind}: {failure.detail}" if failure.detail else failure.kind
        return ""


def commonest_failure(failures: Iterable[Failure]) -> str:
    """Return the first failure of the commonest reason as text."""
    return FailureCounts(failures).commonest
