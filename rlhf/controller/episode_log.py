"""The run's episode log: one record for every episode, with any outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rlhf.runs.episode_parts import EpisodeParts
from rlhf.runs.episode_records import ended_by_failure, ended_by_filter, ended_in_flight, ended_in_update
from rlhf.runs.folder import RunFolder
from rlhf.runs.records import EpisodeOutcome
from rlhf.trainer.loop import GroupLog
from rlhf.types import Failed, Filtered, Group, Task, Ticket, Updated


class EpisodeLog(GroupLog):
    """Tracks all outstanding tickets, and writes the records of their episodes when the outcomes are known."""

    def __init__(self, folder: RunFolder, samples: int, outcomes: Mapping[str, int] = MappingProxyType({})) -> None:
        """Begin a log of groups of `samples` episodes. A resumed run continues from the `outcomes` already written."""
        self._parts = EpisodeParts(folder.episodes, outcomes, folder.check)
        self._samples = samples
        self._out: dict[int, tuple[Ticket, Task, Group | None]] = {}

    def admitted(self, ticket: Ticket, task: Task) -> None:
        self._out[ticket.ordinal] = (ticket, task, None)

    def settled(self, ticket: Ticket, outcome: Group | Filtered | Failed, *, kept: bool) -> None:
        """Record an outcome. A group that is kept waits for its update; the outcome of any other is final."""
        _, task, _ = self._out.pop(ticket.ordinal)
        match outcome:
            case Failed():
                self._parts.add(ended_by_failure(ticket, task, outcome, self._samples))
            case Filtered(group=group) if kept:
                self._out[ticket.ordinal] = (ticket, task, group)
            case Filtered():
                self._parts.add(ended_by_filter(outcome))
            case Group():
                self._out[ticket.ordinal] = (ticket, task, outcome)

    def trained(self, groups: Sequence[Group], updated: Updated, update: int) -> None:
        for group in (one for one in groups if not one.second_use):
            del self._out[group.ticket.ordinal]
        self._parts.add(*ended_in_update(groups, updated, update))
        self._parts.cut()

    @property
    def outcomes(self) -> dict[str, int]:
        return self._parts.outcomes

    def cut(self) -> int:
        """Hand everything recorded so far to the disk; return the number of parts."""
        return self._parts.cut()

    async def written(self) -> None:
        """Wait until every part that was cut is on disk."""
        await self._parts.written()

    @property
    def sample_counts(self) -> dict[str, int]:
        """Episodes by outcome; those of outstanding tickets are in flight, written or not."""
        out, counts = len(self._out) * self._samples, self._parts.counts
        return counts | {name: counts[name] + out for name in ("admitted", EpisodeOutcome.IN_FLIGHT.value)}

    def close(self) -> None:
        """Write the records of outstanding tickets, whose outcome is the end of the run."""
        for ticket, task, group in self._out.values():
            self._parts.add(ended_in_flight(ticket, task, self._samples, group))
        self._out.clear()
        self._parts.close()
