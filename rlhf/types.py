"""The data types: frozen dataclasses, without behaviour beyond reading them.

Arrays are one-dimensional over tokens: `[T]` is all tokens of a segment, `[N]` the tokens of one completion. Masks are
always derived from `kinds`, never from token values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf.images import Image, PlacedImage

PolicyVersion = int
"""Number of updates of the weights; 0 is the start."""
ROUNDING = 1e-9
"""Rewards that differ by less are equal: they are sums and means of numbers without an exact binary form."""
Routing = NDArray[np.int16]
"""The experts that an engine chose for tokens, `[T, layers, k]`; -1 where they are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call of the policy, its arguments parsed. `id` is unique within its message; empty in rows without."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation, before it is rendered to tokens.

    The policy's messages (role `assistant`) may contain tool calls and reasoning in addition to their content; the
    result of a call (role `tool`) has its id. With `images` the content has an `IMAGE_MARK` for each, in order.
    """

    role: str
    content: str
    images: tuple[Image, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that the policy may call. `parameters` is a JSON schema of an object; `other` are further keys that a row
    gives it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    other: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A problem: its messages, and the dataset row it was made from (the reward reads its columns).

    `tools` are those that the chat template shows with the messages; `where` is the row's file and number, for errors.
    """

    id: str
    messages: tuple[Message, ...]
    answer: str | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Tool, ...] = ()
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The environment's answer to a reset or a step: the next messages, for the role that acts next.

    `reward` belongs to the last action; None means no reward. Truncated is not terminated: the episode was cut
    off, and its remaining return is unknown. `info` is for records, never for the policy.
    """

    messages: tuple[Message, ...]
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    role: str = "agent"
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether the episode has ended, terminated or truncated."""
        return self.terminated or self.truncated


def with_own_row(task: Task) -> Task:
    """Return the task with a copy of its row for user code, which may change it: the episodes of a group, and their
    rewards, read the same row."""
    return replace(task, row=_copied(dict(task.row)))


def _copied(value: Any) -> Any:
    """Return a copy of the dicts and lists in a row; other values stay the same objects."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def exact_sum(numbers: Iterable[float]) -> float:
    """Return the sum, rounded once: ten times 0.1 is 1. NaN where it overflows."""
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # of finite numbers, and of infinities with both signs
        return math.nan


LARGEST = 3.4028234663852886e38
"""The largest finite number in float32, which training computes in."""


def is_finite(number: float) -> bool:
    """Whether a reward is finite for training, in float32."""
    return -LARGEST <= number <= LARGEST


def finite_number(given: object) -> float | None:
    """Return a reward from user code as a plain float; None unless it `is_finite`.

    Numpy's numbers are accepted, and booleans are 1 and 0."""
    if not isinstance(given, (float, Real, np.bool_)):  # float first: checking an abstract class takes microseconds
        return None
    try:
        number = float(given)
    except OverflowError:
        return None
    return number if is_finite(number) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """The static description of an environment: its name, its tools, and its roles."""

    name: str
    description: str
    tools: tuple[Tool, ...] = ()
    roles: tuple[str, ...] = ("agent",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are sampled. The engine's request and the learner's log-softmax use the same object.

    `temperature` 0 is greedy and is for evaluation only: a trained log-prob needs a distribution. `max_seconds` limits
    a reply's time in addition to the engine's own limit. A `structure`, one argument of vLLM's structured outputs as
    JSON, holds the reply to a grammar: its log-probs are then not those of the learner's distribution.
    """

    temperature: float = 1.0
    max_tokens: int = 16
    max_seconds: float | None = None
    structure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """Token ids to continue, `int32 [P]`, the images among them, and the name of the policy that continues them, in a
    run with several."""

    token_ids: NDArray[np.int32]
    images: tuple[PlacedImage, ...] = ()
    policy: str = ""


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """The policy sampled a stop token; it is the last token of the completion."""
    LENGTH = "length"
    """The token budget was used up before a stop token."""
    TIME = "time"
    """The time budget was used up before a stop token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """One reply of the policy, with its tokens exactly as sampled.

    `token_ids` `int32 [N]`; `behaviour_logprobs` `float32 [N]`, of the distribution sampled from; `versions`
    `int32 [N]`, the policy version that sampled each token; `routing` `int16 [P + N - 1, layers, k]` the experts that
    the engine chose for the prompt and the reply except its last token, where they are known. The engine `began` in
    seconds since 1970, and worked for `seconds`.
    """

    token_ids: NDArray[np.int32]
    behaviour_logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    finish_reason: FinishReason
    engine: str = ""
    routing: Routing | None = None
    began: float = 0.0
    seconds: float = 0.0


class SampledTokens(NamedTuple):
    """Tokens in the order in which they were sampled, `[N]` each: ids, log-probs and policy versions, as in
    `Completion`."""

    token_ids: NDArray[np.int32]
    behaviour_logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]


class TokenLogprobs(NamedTuple):
    """An engine's log-probs of given tokens `[T]`: `float32 [T - 1]` of tokens 1..T-1 at temperature 1, and the experts
    that it chose, `int16 [T, layers, k]`, where they are known. Of rows `[R, T]` both have their dimension first."""

    logprobs: NDArray[np.float32]
    routing: Routing | None = None


class TokenKind(IntEnum):
    """The origin of a token. Only ACTION tokens are trained; UNTRAINED ones were sampled in a side call."""

    PROMPT = 0
    ACTION = 1
    ENV = 2
    UNTRAINED = 3


_ACTION, _UNTRAINED = int(TokenKind.ACTION), int(TokenKind.UNTRAINED)  # numpy compares slowly with a member


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of an episode: the half-open token range of its actions, and the environment's reward and end flags for
    it. `message` is the place of its reply in the trajectory's conversation; None where it is not there."""

    start: int
    stop: int
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    message: int | None = None


ThreadKind = Literal["main", "compaction", "summary", "subagent", "side"]
"""What an agent's context is to its episode (`rlhf.rollout.endpoint.threads`)."""
MAIN_THREADS: tuple[ThreadKind, ...] = ("main", "compaction")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A sequence of tokens that the model saw as one context. All arrays have one length `[T]`.

    `behaviour_logprobs` and `versions` are meaningful where `kinds` is ACTION or UNTRAINED; elsewhere 0 and -1.
    `routing` `int16 [T, layers, k]` are the experts that the engine chose, -1 where they are unknown.
    """

    token_ids: NDArray[np.int32]
    kinds: NDArray[np.int8]
    behaviour_logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    turns: tuple[Turn, ...] = ()
    routing: Routing | None = None
    thread: ThreadKind = "main"
    images: tuple[PlacedImage, ...] = ()

    @property
    def content_ids(self) -> NDArray[np.int32]:
        """`int32 [T]`: the token ids, with the hash of each image as negative numbers in place of its tokens: equal
        where the model sees the same."""
        if not self.images:
            return self.token_ids
        found = self.token_ids.copy()
        for placed in self.images:
            digest = np.frombuffer(bytes.fromhex(placed.features.image.sha256), np.int32)
            found[placed.start : placed.stop] = np.resize(digest | np.int32(-(2**31)), placed.stop - placed.start)
        return found

    @property
    def action_mask(self) -> NDArray[np.bool_]:
        """`bool [T]`: true at ACTION tokens."""
        mask: NDArray[np.bool_] = self.kinds == _ACTION
        return mask

    @property
    def sampled_mask(self) -> NDArray[np.bool_]:
        """`bool [T]`: true at ACTION and UNTRAINED tokens."""
        mask: NDArray[np.bool_] = self.action_mask | (self.kinds == _UNTRAINED)
        return mask


class EpisodeStatus(StrEnum):
    """How an episode ended. Truncated is not terminated: a critic bootstraps."""

    TERMINATED = "terminated"
    TRUNCATED = "truncated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds that an episode spent in generation and in its environment, queueing included."""

    generate_seconds: float = 0.0
    environment_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """The record of one episode, as one role saw it. `response` is the policy's last reply as text, `policy` the name
    of the policy that played the role, in a run with several.

    With an environment `conversation` contains all messages in order, for people; `malformed_calls` counts the replies
    with malformed tool calls, `cut_replies` those that end at a stop text of the agent, `constrained_replies` those
    that a grammar constrained, which are not trained. `out_of_time` marks an episode that a time limit cut off.
    `env_info` is the `info` of every observation. `reward_parts` are the scores of
    the other parts of a combined reward, for a part that asks for them.
    """

    task: Task
    segments: tuple[Segment, ...]
    status: EpisodeStatus
    response: str = ""
    timings: Timings = Timings()
    engine: str = ""
    conversation: tuple[Message, ...] = ()
    malformed_calls: int = 0
    cut_replies: int = 0
    constrained_replies: int = 0
    role: str = "agent"
    policy: str = ""
    out_of_time: bool = False
    env_info: tuple[Mapping[str, Any], ...] = ()
    reward_parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def action_tokens(self) -> int:
        """Number of ACTION tokens in all segments."""
        return sum(int(np.count_nonzero(segment.action_mask)) for segment in self.segments)

    @property
    def turns(self) -> int:
        """Number of turns; an agent's side calls are none."""
        return sum(len(segment.turns) for segment in self.segments if segment.thread in MAIN_THREADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The score of a trajectory. `parts` are the named parts before weighting.

    The rewards of the turns, times `turn_weight`, are part of the value: each is credited to its turn, and the rest of
    the value to the end. With `only_turns` there is no rest: all rewards are those of turns. `failure` is the kind of a
    scorer's failure where `value` is the recipe's score for such replies; `detail` is for people.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    turn_weight: float = 0.0
    only_turns: bool = False
    failure: str = ""
    detail: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscored:
    """The scorer failed: there is no score. `kind` is one word for counting, `detail` a sentence for people."""

    kind: str
    detail: str = ""


CAUSED_BY_REPLIES = frozenset(
    {
        "timeout", "raised", "died", "not a number", "not finite", "verdict", "too long", "unknown token", "empty",
        "broke the sandbox",
    }
)  # fmt: skip
"""Kinds of failed scores that a reply can cause. A missing server, a sandbox that does not start and a task without an
answer are not among them: these leave a reply unscored whatever the recipe says."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Failed:
    """An episode or a group whose environment, engine or scorers failed. It is counted, never trained.

    `samples` are the samples that a failed group had played before, for the records.
    """

    kind: str
    detail: str = ""
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The right to play one group: its position in the order of training and the version at its admission."""

    ordinal: int
    version: PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One episode of a group: a trajectory with its score, or the failure in its place."""

    trajectory: Trajectory | Failed
    score: Scored | Unscored

    @property
    def trainable(self) -> bool:
        """Whether the episode has a trajectory and a score."""
        return isinstance(self.trajectory, Trajectory) and isinstance(self.score, Scored)

    @property
    def failure(self) -> Failed | Unscored | None:
        """Why it cannot be trained: the episode's failure, else its scorer's; None where it can be trained."""
        broken = self.trajectory if isinstance(self.trajectory, Failed) else self.score
        return None if isinstance(broken, Scored) else broken

    @property
    def failure_kind(self) -> str | None:
        """The kind of its failure."""
        return self.failure.kind if self.failure else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """All episodes of one task under one ticket, in sample order.

    `baseline` is an additional greedy episode that the others are compared with; it is never trained (ReMax).
    `second_use` marks a group that an earlier update trained already. With a `policy`, only the samples that it played
    are trainable.
    """

    ticket: Ticket
    task: Task
    samples: tuple[Sample, ...]
    baseline: Sample | None = None
    second_use: bool = False
    policy: str | None = None

    @property
    def trainable(self) -> tuple[tuple[int, Trajectory, Scored], ...]:
        """`(sample index, trajectory, score)` of the samples that have a score, and were played by `policy`."""
        return tuple(
            (index, sample.trajectory, sample.score)
            for index, sample in enumerate(self.samples)
            if isinstance(sample.trajectory, Trajectory)
            and isinstance(sample.score, Scored)
            and self.policy in (None, sample.trajectory.policy)
        )

    @property
    def rewards_by_role(self) -> dict[str, list[float]]:
        """The rewards to compare with one another, by role, in sample order."""
        rewards: dict[str, list[float]] = {}
        for _, trajectory, score in self.trainable:
            rewards.setdefault(trajectory.role, []).append(score.value)
        return rewards

    @property
    def all_equal(self) -> bool:
        """Whether no role has two different rewards, up to their rounding, so that there is nothing to compare."""
        groups = self.rewards_by_role.values()
        return all(math.isclose(min(one), max(one), rel_tol=ROUNDING, abs_tol=ROUNDING) for one in groups)

    @property
    def reward_variance(self) -> float:
        """The variance of its rewards, the mean over roles; 0 where all are equal up to their rounding."""
        rewards = self.rewards_by_role.values()
        return 0.0 if self.all_equal else float(np.mean([np.var(one) for one in rewards]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filtered:
    """A group that the recipe's filter excludes from training (for instance: all rewards equal)."""

    group: Group
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedSample:
    """The training of one trajectory in an update: its advantage, and the learner's entropies and log-probs in the
    forward pass of its first step; log-probs that the ranks computed before the update are those of that pass.

    `advantages`, `proximal_logprobs` and `entropies` are `float32 [A]` over the ACTION tokens of all segments in order.
    """

    ordinal: int
    sample: int
    advantages: NDArray[np.float32]
    proximal_logprobs: NDArray[np.float32]
    entropies: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Updated:
    """The result of one update: reduced metrics, and what was trained, per sample."""

    metrics: Mapping[str, float]
    samples: tuple[TrainedSample, ...]
    frozen: tuple[str, ...] = ()
    """The policies that are never trained, of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A written file: its size in bytes and the checksum of its content."""

    size: int
    checksum: str
