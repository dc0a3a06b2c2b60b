"""The nouns: data with names, frozen, and no behaviour beyond reading it.

Arrays are one-dimensional over tokens: `[T]` is all tokens of a segment, `[N]` the tokens of one completion.
Masks are always derived from `kinds`, never from token values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PolicyVersion = int
"""Updates behind the weights; 0 is the start."""
Routing = NDArray[np.int16]
"""The experts that an engine chose for tokens, `[T, layers, k]`; -1 where it did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that the policy asked for, its arguments parsed. `id` tells it from the others of its message."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation, before it is rendered to tokens.

    What the policy says (role `assistant`) may hold tool calls; the answer to one (role `tool`) names its id.
    """

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Something that the policy may call. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A problem: what is asked, and the row of the dataset it came from (the reward reads its columns)."""

    id: str
    messages: tuple[Message, ...]
    answer: str | None = None
    row: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What an environment says after a reset or a step: what is to be read next, by the role that acts next.

    `reward` is of the action just taken, `None` where there is none. Truncated is not terminated: the episode was cut
    off, and what it could still have earned is unknown. `info` is for records, never for the policy.
    """

    messages: tuple[Message, ...]
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    role: str = "agent"
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


def finite_number(given: object) -> float | None:
    """What somebody's code gives as a reward, as a plain float; None for all that is no finite number, text and None
    too. Numpy's numbers are numbers, and truth values are 1 and 0."""
    if not isinstance(given, (float, Real, np.bool_)):  # float first: asking an abstract class takes microseconds
        return None
    try:
        number = float(given)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """What an environment is, before it is played: its name, the tools it offers, and the roles that act in it."""

    name: str
    description: str
    tools: tuple[Tool, ...] = ()
    roles: tuple[str, ...] = ("agent",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. One object feeds the engine's request and the learner's log-softmax.

    `temperature` 0 is greedy and is for evaluation only: a trained log-prob needs a distribution. `max_seconds` is the
    time that a reply may take beside the engine's own limit.
    """

    temperature: float = 1.0
    max_tokens: int = 16
    max_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """Token ids to continue, `int32 [P]`."""

    token_ids: NDArray[np.int32]


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """The policy sampled a stop token; it is the last token of the completion."""
    LENGTH = "length"
    """The token budget ran out while the policy was talking."""
    TIME = "time"
    """The time budget ran out while the policy was talking."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """One reply of the policy, token by token as it was sampled.

    `token_ids` `int32 [N]`; `logprobs` `float32 [N]`, of the distribution sampled from;
    `versions` `int32 [N]`, the policy version that sampled each token; `routing` `int16 [P + N - 1, layers, k]` the
    experts that the engine chose for the prompt and the reply but its last token, where it says so.
    """

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    finish_reason: FinishReason
    engine: str = ""
    routing: Routing | None = None


class TokenLogprobs(NamedTuple):
    """What an engine says of given tokens `[T]`: the log-probs `float32 [T - 1]` of tokens 1..T-1 at temperature 1, and
    the experts that it chose, `int16 [T, layers, k]`, where it says so."""

    logprobs: NDArray[np.float32]
    routing: Routing | None = None


class TokenKind(IntEnum):
    """Who wrote a token. Only ACTION tokens are trained."""

    PROMPT = 0
    ACTION = 1
    ENV = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of an episode: the half-open token range of its actions, and what the environment said of it."""

    start: int
    stop: int
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A run of tokens that the model saw as one context. All arrays have one length `[T]`.

    `logprobs` and `versions` are meaningful where `kinds` is ACTION; elsewhere 0 and -1. `routing` `int16
    [T, layers, k]` are the experts that the engine chose, -1 where it did not say.
    """

    token_ids: NDArray[np.int32]
    kinds: NDArray[np.int8]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    turns: tuple[Turn, ...] = ()
    routing: Routing | None = None

    @property
    def action_mask(self) -> NDArray[np.bool_]:
        mask: NDArray[np.bool_] = self.kinds == TokenKind.ACTION
        return mask


class EpisodeStatus(StrEnum):
    """How an episode ended. Truncated is not terminated: a critic bootstraps."""

    TERMINATED = "terminated"
    TRUNCATED = "truncated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds an episode spent in each place, waiting for its turn there included."""

    generate_seconds: float = 0.0
    environment_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """The record of one episode, as one role saw it. `response` is the policy's last reply as text.

    With an environment `conversation` is all that was said, in order, for people; `malformed_calls` counts the replies
    whose tool calls could not be read. `out_of_time` tells an episode that was cut off by a clock.
    """

    task: Task
    segments: tuple[Segment, ...]
    status: EpisodeStatus
    response: str = ""
    timings: Timings = Timings()
    engine: str = ""
    conversation: tuple[Message, ...] = ()
    malformed_calls: int = 0
    role: str = "agent"
    out_of_time: bool = False

    @property
    def action_tokens(self) -> int:
        return int(sum(int(segment.action_mask.sum()) for segment in self.segments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What a scorer said of a trajectory. `parts` are the named pieces before weighting.

    The rewards of the turns, times `turn_weight`, are part of the value: each is paid at its turn, and what is left of
    the value at the end. With `only_turns` nothing is left: the episode was judged along the way and not at its end.
    `failure` is the kind of a scorer's failure where the value is what the recipe gives to such replies; `detail`
    is for people.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    turn_weight: float = 0.0
    only_turns: bool = False
    failure: str = ""
    detail: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscored:
    """A scorer that broke: there is no number. `kind` is one word for counting, `detail` a sentence for people."""

    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Failed:
    """An episode or a group whose environment, engine or scorers broke. It is counted, never trained.

    `samples` is what a failed group had played before it was given up, for the records.
    """

    kind: str
    detail: str = ""
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The right to play one group: its place in the order of training and the version it was admitted at."""

    ordinal: int
    version: PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One episode's fate within its group: a trajectory with its score, or the failure that took its place."""

    trajectory: Trajectory | Failed
    score: Scored | Unscored

    @property
    def trainable(self) -> bool:
        return isinstance(self.trajectory, Trajectory) and isinstance(self.score, Scored)

    @property
    def failure_kind(self) -> str | None:
        """Why it cannot be trained: the kind of the episode's failure, else of its scorer's; None where it can."""
        broken = self.trajectory if isinstance(self.trajectory, Failed) else self.score
        return None if isinstance(broken, Scored) else broken.kind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """All episodes of one task under one ticket, in sample order.

    `baseline` is one more episode, played greedily to compare the others with and never trained (ReMax)."""

    ticket: Ticket
    task: Task
    samples: tuple[Sample, ...]
    baseline: Sample | None = None

    @property
    def trainable(self) -> tuple[tuple[int, Trajectory, Scored], ...]:
        """`(sample index, trajectory, score)` of the samples that have a number."""
        return tuple(
            (index, sample.trajectory, sample.score)
            for index, sample in enumerate(self.samples)
            if isinstance(sample.trajectory, Trajectory) and isinstance(sample.score, Scored)
        )

    @property
    def rewards_by_role(self) -> dict[str, list[float]]:
        """The rewards that are compared with one another, in sample order."""
        rewards: dict[str, list[float]] = {}
        for _, trajectory, score in self.trainable:
            rewards.setdefault(trajectory.role, []).append(score.value)
        return rewards

    @property
    def all_equal(self) -> bool:
        """Whether there is nothing to compare: no role has two different rewards."""
        return all(len(set(rewards)) < 2 for rewards in self.rewards_by_role.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filtered:
    """A whole group that the recipe's filter would rather not train (for instance: all rewards equal)."""

    group: Group
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedSample:
    """What an update did with one trajectory: its advantage and the learner's log-probs in the pass of its first step.

    `advantages` and `logprobs` are `float32 [A]` over the ACTION tokens of all segments in order.
    """

    ordinal: int
    sample: int
    advantages: NDArray[np.float32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Updated:
    """The outcome of one update: reduced metrics, and per sample what was trained."""

    metrics: Mapping[str, float]
    samples: tuple[TrainedSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file as it was written: its size in bytes and the checksum of its content."""

    size: int
    checksum: str
