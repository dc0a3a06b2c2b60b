"""The rollout buffer: bounded staleness by tickets, trained in order.

There are `(max_staleness + 1) x groups_per_update` tickets. A filtered or failed group returns its ticket at once, a
trained one at `advance`. `take` returns the oldest `groups_per_update` live tickets in the order of their ordinals. So
a group admitted at version v is trained by update v + max_staleness, slow groups are never discarded, and no group is
started that cannot be trained before the run ends. An update may also reuse groups from earlier updates
(`rlhf.trainer.replay`): these have no ticket. Single event loop; no locks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, islice
from math import fsum
from statistics import mean

from rlhf.errors import FailureBudgetSpent
from rlhf.runs.lost_samples import Failure, commonest_failure, failures_of, samples_of
from rlhf.trainer.replay import GroupReplay, Waiting
from rlhf.types import Failed, Filtered, Group, PolicyVersion, Ticket

MIN_WINDOW = 64
"""Minimum window of groups for a failure rate: at a rate of 30 %, a window of 8 would exceed one half every few
updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The state of every admitted group: `admitted = trained + filtered + failed + in_flight`.

    `in_flight` counts groups being played, waiting, or returned by `take` and not yet followed by `advance`.
    """

    admitted: int
    trained: int
    filtered: int
    failed: int
    in_flight: int

    @property
    def balanced(self) -> bool:
        return self.admitted == self.trained + self.filtered + self.failed + self.in_flight


class TicketBuffer:
    """Admits, settles and hands out groups for `updates` updates from `version` on.

    `reissue` are the ordinals that were outstanding when a checkpoint was taken: they are admitted again, first.
    `accounts` are those of that moment (`settled_accounts`). `take` raises `FailureBudgetSpent` when more than
    `failure_budget` of the samples of the last groups were lost: all of a failed group, and the samples without a score
    in any other.
    """

    def __init__(
        self,
        *,
        groups_per_update: int,
        max_staleness: int,
        updates: int,
        refill_groups: int,
        failure_budget: float,
        version: PolicyVersion = 0,
        next_ordinal: int = 0,
        reissue: Iterable[int] = (),
        accounts: Accounts | None = None,
        replay: GroupReplay | None = None,
    ) -> None:
        self.groups_per_update = groups_per_update
        self.version = version
        self._tickets = (max_staleness + 1) * groups_per_update
        self._owed = (updates - version) * groups_per_update
        self._refill_groups, self._refilled = refill_groups, 0
        self._failure_budget = failure_budget
        self._recent_losses: deque[float] = deque(maxlen=max(MIN_WINDOW, 4 * groups_per_update))
        self._recent_failures: deque[list[Failure]] = deque(maxlen=self._recent_losses.maxlen)
        self._next_ordinal = next_ordinal
        self._reissue = deque(sorted(reissue))
        self._live: dict[int, Group | None] = {}
        self._taken: tuple[int, ...] = ()
        before = accounts or Accounts(admitted=0, trained=0, filtered=0, failed=0, in_flight=0)
        self._admitted, self._trained = before.admitted, before.trained
        self._filtered, self._failed = before.filtered, before.failed
        self._replay = replay
        self._settled, self._freed = asyncio.Event(), asyncio.Event()
        self.awaited = self._ended = False
        """Whether the learner waits for groups."""
        self.lost_samples = 0
        """Counted since this buffer was made; these samples are in no update, whether or not their group is."""

    async def admit(self) -> Ticket:
        """Wait for a free ticket; stamp it with the next ordinal and the current version.

        `settle` of a filtered or failed group, and `advance`, wake it. It waits forever once all that the run can still
        train is in flight: the loop cancels the remaining rollouts at the end.
        """
        await _until(self._may_admit, self._freed)
        ordinal = self._reissue.popleft() if self._reissue else self._take_ordinal()
        self._live[ordinal] = None
        self._admitted += 1
        return Ticket(ordinal=ordinal, version=self.version)

    def settle(self, ticket: Ticket, outcome: Group | Filtered | Failed) -> bool:
        """Report the outcome of a ticket. Returns whether its group will be trained.

        When the update's refill budget is spent, a filtered group is kept after all: the batch is never short, and the
        run never aborts for it.
        """
        lost, samples = lost_samples(outcome)
        self._recent_losses.append(lost / samples if samples else float(isinstance(outcome, Failed)))
        self._recent_failures.append(failures_of(outcome))
        self.lost_samples += lost
        buffered = self._keep(outcome)
        if buffered is None:
            del self._live[ticket.ordinal]
            self._freed.set()
        else:
            self._live[ticket.ordinal] = buffered
        self._settled.set()
        return buffered is not None

    async def take(self) -> list[Group]:
        """Wait for the oldest `groups_per_update` live tickets, and return their groups in order, then second uses.

        Each of them settles within the deadlines of its rollout, so this wait ends.
        """
        self.awaited = True
        await _until(lambda: self._ended or self._too_many_failures() or self._oldest_are_settled(), self._settled)
        self.awaited = False
        if self._ended:
            return []
        if self._too_many_failures():
            raise FailureBudgetSpent(
                f"{mean(self._recent_losses):.0%} of the samples of the last {len(self._recent_losses)} groups were "
                f"lost; trainer.failure_budget allows {self._failure_budget:.0%}; most often "
                f"{commonest_failure(chain.from_iterable(self._recent_failures))}"
            )
        self._taken = self._oldest()
        groups = [group for ordinal in self._taken if (group := self._live[ordinal]) is not None]
        return groups + (self._replay.second_uses(groups, self.version + 1) if self._replay else [])

    def end(self) -> None:
        """Have `take` return no groups, also while it waits."""
        self._ended = True
        self._settled.set()

    def advance(self, version: PolicyVersion) -> None:
        """Note that engines now sample from `version`: groups taken before are trained, so free their tickets."""
        for ordinal in self._taken:
            del self._live[ordinal]
        self._trained += len(self._taken)
        self._owed -= len(self._taken)
        self._taken = ()
        self._refilled = 0
        self.version = version
        self._freed.set()

    @property
    def progress(self) -> str:
        """How many groups of the next update have arrived, and how many samples the run has lost: `groups 3/64, lost
        12`."""
        ready = sum(self._live[ordinal] is not None for ordinal in self._oldest())
        return f"groups {ready}/{self.groups_per_update}, lost {self.lost_samples}"

    @property
    def accounts(self) -> Accounts:
        return Accounts(
            admitted=self._admitted,
            trained=self._trained,
            filtered=self._filtered,
            failed=self._failed,
            in_flight=len(self._live),
        )

    @property
    def settled_accounts(self) -> Accounts:
        """The accounts as a resumed run continues with them: outstanding groups will be admitted again."""
        trained = self._trained + len(self._taken)
        admitted = trained + self._filtered + self._failed
        return Accounts(admitted=admitted, trained=trained, filtered=self._filtered, failed=self._failed, in_flight=0)

    @property
    def next_ordinal(self) -> int:
        """The first ordinal never admitted."""
        return self._next_ordinal

    @property
    def outstanding(self) -> tuple[int, ...]:
        """Ordinals that are admitted, or waiting for readmission, and neither taken nor settled: a resumed run
        re-issues them."""
        return tuple(sorted((set(self._live) - set(self._taken)) | set(self._reissue)))

    @property
    def waiting(self) -> Waiting:
        """The groups that wait for their second use."""
        return self._replay.waiting if self._replay else ()

    @property
    def newest_taken(self) -> int:
        """The largest ordinal that was taken since the last `advance`; -1 where none was."""
        return max(self._taken, default=-1)

    def _take_ordinal(self) -> int:
        self._next_ordinal += 1
        return self._next_ordinal - 1

    def _may_admit(self) -> bool:
        return len(self._live) < min(self._tickets, self._owed)

    def _keep(self, outcome: Group | Filtered | Failed) -> Group | None:
        match outcome:
            case Failed():
                self._failed += 1
                return None
            case Filtered() if self._refilled < self._refill_groups:
                self._refilled += 1
                self._filtered += 1
                return None
            case Filtered():
                return outcome.group
            case Group():
                return outcome

    def _oldest(self) -> tuple[int, ...]:
        return tuple(islice(self._live, self.groups_per_update))  # they were admitted in the order of their ordinals

    def _oldest_are_settled(self) -> bool:
        oldest = self._oldest()
        return len(oldest) == self.groups_per_update and all(self._live[ordinal] is not None for ordinal in oldest)

    def _too_many_failures(self) -> bool:
        losses = self._recent_losses
        return len(losses) == losses.maxlen and fsum(losses) > self._failure_budget * len(losses)


async def _until(predicate: Callable[[], bool], changed: asyncio.Event) -> None:
    """Wait until `predicate` holds; it is evaluated again after every change. `set` wakes all who wait at that moment,
    so a waiter that clears the event takes nothing from the others.

    The awaited work has its own deadlines: every rollout, and the learner's update and publish.
    """
    while not predicate():
        changed.clear()
        await changed.wait()


def lost_samples(outcome: Group | Filtered | Failed) -> tuple[int, int]:
    """Return the number of lost samples of a group (without a score, or in a failed group), and the number of all its
    samples."""
    if isinstance(outcome, Failed):
        return len(outcome.samples), len(outcome.samples)
    samples = samples_of(outcome)
    return sum(not sample.trainable for sample in samples), len(samples)
