"""Rollout of one group: every sample of a task is played, then all are scored together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import takewhile

from rlhf.chat.renderer import ChatRenderer
from rlhf.errors import ConfigError, DeadlinePassed, EnvironmentFailed, GenerateFailed
from rlhf.protocols import RewardFunction, RolloutEngine
from rlhf.rollout.agent import AGENT_FAILURE
from rlhf.rollout.episode import AGENT, AnswerOnce, EpisodeRunner, PolicyClient
from rlhf.rollout.seeds import environment_seed, request_seed
from rlhf.runs.lost_samples import commonest_failure, failures_of
from rlhf.tracing import span
from rlhf.types import Failed, Filtered, Group, Sample, Sampling, Task, Ticket, Trajectory, Unscored

ENVIRONMENT_FAILURE = "environment_"
"""Prefix of the failure kinds that an environment caused, followed by the kind of `EnvironmentFailed`."""
ANSWER_ONCE = AnswerOnce()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupRollout:
    """Plays `group_size` episodes of a task concurrently; a failure in one becomes data. Sample `n * roles + r` is role
    `r` of episode `n`. With `greedy_baseline`, one more is played at temperature 0: the group's `baseline` (ReMax,
    arXiv 2310.10505), which needs a single role. A group whose baseline has no score is `Failed("no_baseline")`.
    `policy_of(role, task, ordinal)` names the policy of a role, in a run with several; the `trained` ones, where None
    is all, must have samples, and are compared by `filter_equal_rewards`."""

    engine: RolloutEngine
    renderer: ChatRenderer
    reward: RewardFunction
    sampling: Sampling
    group_size: int
    max_context_tokens: int
    run_seed: int
    filter_equal_rewards: bool = False
    greedy_baseline: bool = False
    purpose: str = "train"
    play: EpisodeRunner = ANSWER_ONCE
    policy_of: Callable[[str, Task, int], str] = lambda role, task, ordinal: ""
    trained: tuple[str | None, ...] = (None,)

    def __post_init__(self) -> None:
        if self.greedy_baseline and len(self.play.roles) > 1:
            raise ConfigError(
                f"a greedy baseline (remax) needs an environment with one role; this one has {len(self.play.roles)}"
            )

    @property
    def samples(self) -> int:
        return self.group_size * len(self.play.roles)

    async def __call__(self, task: Task, ticket: Ticket) -> Group | Filtered | Failed:
        plays = [self._episode(task, ticket, n, self.sampling) for n in range(self.group_size)]
        if self.greedy_baseline:
            plays.append(self._episode(task, ticket, self.group_size, replace(self.sampling, temperature=0.0)))
        played = [outcome for outcomes in await asyncio.gather(*plays) for outcome in outcomes]
        scored = await self._scored(task, played)
        samples, beside = scored[: self.samples], scored[self.samples :]
        return self._outcome(Group(ticket=ticket, task=task, samples=samples, baseline=next(iter(beside), None)))

    async def _episode(
        self, task: Task, ticket: Ticket, sample: int, sampling: Sampling
    ) -> tuple[Trajectory | Failed, ...]:
        """Return the outcome of one episode, for every role."""
        seed = environment_seed(run_seed=self.run_seed, purpose=self.purpose, task=task.id)
        try:
            policy = self._policy(task, ticket, sample, sampling)
            with span("episode", detail=True, task=task.id, session=policy.session):
                return await self.play(task, policy, seed)
        except DeadlinePassed as error:
            failed = Failed(kind="timeout", detail=str(error))
        except GenerateFailed as error:
            failed = Failed(kind="engine", detail=str(error))
        except EnvironmentFailed as error:
            failed = Failed(kind=f"{ENVIRONMENT_FAILURE}{error.kind}", detail=str(error))
        return tuple(failed for _ in self.play.roles)

    def _policy(self, task: Task, ticket: Ticket, sample: int, sampling: Sampling) -> PolicyClient:
        def seed_of(turn: int) -> int:
            return request_seed(
                run_seed=self.run_seed, purpose=self.purpose, ordinal=ticket.ordinal, sample=sample, turn=turn
            )

        return PolicyClient(
            engine=self.engine,
            renderer=self.renderer,
            sampling=sampling,
            max_context_tokens=self.max_context_tokens,
            session=f"{self.purpose}-{ticket.ordinal}-{sample}",
            seed_of=seed_of,
            policy_of=lambda role: self.policy_of(role, task, ticket.ordinal),
        )

    async def _scored(self, task: Task, episodes: list[Trajectory | Failed]) -> tuple[Sample, ...]:
        """Return the episodes paired with their scores; a failed episode is not passed to the scorer."""
        played = [episode for episode in episodes if isinstance(episode, Trajectory)]
        with span("score", detail=True, replies=len(played)) if played else nullcontext():
            scores = iter(await self.reward(task, played) if played else [])
        return tuple(
            Sample(trajectory=episode, score=next(scores))
            if isinstance(episode, Trajectory)
            else Sample(trajectory=episode, score=Unscored(kind="not_played", detail=episode.kind))
            for episode in episodes
        )

    def _outcome(self, group: Group) -> Group | Filtered | Failed:
        learning = sum(len(replace(group, policy=one).trainable) for one in self.trained)
        if learning < min(2, self.group_size):
            kinds = Counter(kind for sample in group.samples if (kind := sample.failure_kind))
            lost = ", ".join(f"{kind} x{count}" for kind, count in sorted(kinds.items()))
            first = commonest_failure(failures_of(group))
            detail = f"{kinds.total()} of {len(group.samples)} lost: {lost}; {first}"
            return Failed(kind="too_few_survivors", detail=detail, samples=group.samples)
        if group.baseline and (loss := group.baseline.failure_kind):
            return Failed(kind="no_baseline", detail=f"lost the greedy episode: {loss}", samples=group.samples)
        if self.filter_equal_rewards and all(replace(group, policy=one).all_equal for one in self.trained):
            return Filtered(group=group, reason="equal rewards")
        return group


def unlike_openings(group: Group) -> str:
    """Return a note if episodes of one task began with different observations although they share a seed; else empty.
    With several roles, one role's first observation may depend on another's replies."""
    openings = {
        tuple(takewhile(lambda message: message.role != "assistant", trajectory.conversation))
        for _, trajectory, _ in group.trainable
        if trajectory.role == AGENT and trajectory.conversation
    }
    if len(openings) < 2:
        return ""
    return (
        f"the episodes of task {group.task.id} share a seed but began with {len(openings)} different observations, "
        "so their rewards cannot be compared; derive the first observation from task and seed alone"
    )


def lost_to_environment(sample: Sample) -> bool:
    outside = (ENVIRONMENT_FAILURE, AGENT_FAILURE)
    return isinstance(sample.trajectory, Failed) and sample.trajectory.kind.startswith(outside)
