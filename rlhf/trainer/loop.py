"""The training loop. Synchronous, one-step-off and asynchronous training differ only in the number of tickets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rlhf.data.learnability import ChosenTasks
from rlhf.errors import naming_leaks
from rlhf.protocols import Rollout, Updates, WeightSync
from rlhf.tracing import span
from rlhf.trainer.buffer import TicketBuffer
from rlhf.types import Failed, Filtered, Group, PolicyVersion, Task, Ticket, Updated

Boundary = Callable[[PolicyVersion, Updated | None], Awaitable[bool]]
"""The hook between two updates, for evaluation, checkpoint and stop. Returning True ends the run."""


class GroupLog:
    """Receives every group of a loop: when it is admitted, how it ended, whether it is kept for an update, and the
    update that trained it. This class ignores all of them."""

    def admitted(self, ticket: Ticket, task: Task) -> None: ...
    def settled(self, ticket: Ticket, outcome: Group | Filtered | Failed, *, kept: bool) -> None: ...
    def trained(self, groups: Sequence[Group], updated: Updated, update: PolicyVersion) -> None: ...


IGNORED = GroupLog()


class Loop:
    """Players generate groups, the learner trains on them, and the engines receive the learner's weights."""

    def __init__(
        self,
        *,
        tasks: ChosenTasks[Task],
        rollout: Rollout,
        buffer: TicketBuffer,
        learner: Updates,
        weights: WeightSync,
        max_concurrent_groups: int,
        log: GroupLog = IGNORED,
    ) -> None:
        self.tasks, self.rollout, self.buffer = tasks, rollout, buffer
        self.learner, self.weights, self.log = learner, weights, log
        self.max_concurrent_groups = max_concurrent_groups
        self.version: PolicyVersion = 0

    async def run(self, updates: int, boundary: Boundary) -> None:
        """Train until version `updates` is reached, or until `boundary` ends the run. Before the first update
        `boundary` is called without an outcome."""
        await self.publish()  # engines never start with their own weights, not even after a resume
        if await boundary(self.version, None):
            return
        self.buffer.advance(self.version)
        async with asyncio.TaskGroup() as group:
            players = [group.create_task(self.play()) for _ in range(self.max_concurrent_groups)]
            await self.learn(updates, boundary)
            for player in players:
                player.cancel()

    async def play(self) -> None:
        """Consumes tickets, produces groups; woken by the buffer. `max_concurrent_groups` instances run at once."""
        while True:
            ticket = await self.buffer.admit()
            task = self.tasks[ticket.ordinal]
            self.log.admitted(ticket, task)
            with span("generate", ordinal=ticket.ordinal, version=ticket.version):
                outcome = await naming_leaks(self.rollout(task, ticket), f"the play of group {ticket.ordinal}")
            self.tasks.settled(ticket.ordinal, outcome)
            self.log.settled(ticket, outcome, kept=self.buffer.settle(ticket, outcome))

    async def learn(self, updates: int, boundary: Boundary) -> None:
        """Consumes groups in order, produces weights; woken when groups are ready."""
        while self.version < updates:
            with span("wait"):
                groups = await self.buffer.take()
            if not groups:
                break
            with span("train", version=self.version):
                updated = await self.learner.update(groups)
            with span("record", version=self.version + 1):
                self.log.trained(groups, updated, self.version + 1)
            await self.publish()
            stop = await boundary(self.version, updated)
            self.tasks.advance(max(group.ticket.ordinal for group in groups))
            self.buffer.advance(self.version)
            if stop:
                break

    async def publish(self) -> None:
        with span("weight_sync"):
            self.version = await self.weights.publish()
