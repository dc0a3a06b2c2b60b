"""The record of an episode: its task, tokens, score, training data and outcome.

Every per-token column of a record has the length `[T]` of its concatenated segments, and `segment_lengths` the length
of each. Log-probs and advantages are NaN, and versions -1, at tokens that the policy did not sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.runs.jsonl import finite
from rlhf.types import (
    Failed,
    Filtered,
    Group,
    Message,
    Sample,
    Scored,
    Segment,
    Task,
    Ticket,
    TrainedSample,
    Trajectory,
    Unscored,
    Updated,
)


class EpisodeOutcome(StrEnum):
    """The outcome of an episode. Every admitted episode has exactly one."""

    TRAINED = "trained"
    """It was part of an update."""
    FILTERED = "filtered"
    """It was valid, and the recipe's filter replaced its group."""
    FAILED = "failed"
    """Its environment or engine failed, or that of its group."""
    UNSCORED = "unscored"
    """Its scorer failed: it has no score and was not part of the update."""
    IN_FLIGHT = "in_flight"
    """The run ended before it could be trained."""
    EVALUATED = "evaluated"
    """It was played to evaluate the policy, not for training."""
    BASELINE = "baseline"
    """It was played greedily as its group's baseline, not for training."""
    SERVED = "served"
    """An external agent played it with a served policy, outside of any run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeRecord:
    """One row of the recorded episodes. Values that do not apply are null."""

    ordinal: int
    """Position of the group in the order of training."""
    sample: int
    """Index of the episode in its group; each role of an episode has an index. A baseline follows the last sample."""
    task: str
    """Id of the task."""
    evaluation_set: str | None = None
    """Name of the evaluation set, for an evaluated episode."""
    outcome: EpisodeOutcome
    admitted_version: int
    """Policy version when the group was admitted."""
    update: int | None = None
    """Update (from 1) that trained it; a token's staleness is `update - 1 - versions[t]`."""
    prompt: list[dict[str, str]]
    """The messages of the prompt, each with `role` and `content`."""
    answer: str | None = None
    """The reference answer."""
    response: str | None = None
    """The reply as text; training reads `token_ids`."""
    status: str | None = None
    """`terminated` or `truncated`."""
    reward: float | None = None
    reward_parts: dict[str, float] | None = None
    """The named parts of the reward before weighting."""
    reward_detail: str | None = None
    """The scorer's explanation: for kind `code`, the number of passed tests, and whether they trusted the code."""
    reward_per_turn: bool | None = None
    """Whether the reward is only the sum over `turns`."""
    turn_weight: float | None = None
    """The weight of the rewards of `turns` in the reward, if they are part of it."""
    advantage: float | None = None
    """Mean advantage of its sampled tokens."""
    advantages: NDArray[np.float32] | None = None
    """Advantage of every token, only where advantages differ within the episode (with a critic)."""
    failure_kind: str | None = None
    """The failure, or the reason of the filter, in one word."""
    failure_detail: str | None = None
    engine: str | None = None
    """Name of the engine that sampled it."""
    generate_seconds: float | None = None
    environment_seconds: float | None = None
    sampled_tokens: int | None = None
    """Number of tokens that the policy sampled."""
    conversation: list[dict[str, Any]] | None = None
    """With an environment: all messages in order, each with `role`, `content` and, if any, `tool_calls`. Training reads
    `token_ids`."""
    role: str | None = None
    """With an environment: the role whose turns these are."""
    malformed_calls: int | None = None
    """Number of replies with malformed tool calls."""
    cut_replies: int | None = None
    """Number of replies that end at a stop text of the agent, where `client_stop` is `cut`."""
    segment_lengths: list[int] | None = None
    token_ids: NDArray[np.int32] | None = None
    kinds: NDArray[np.int8] | None = None
    """0 prompt, 1 action (sampled by the policy), 2 environment."""
    engine_logprobs: NDArray[np.float32] | None = None
    """The engine's log-probs, in the distribution sampled from."""
    learner_logprobs: NDArray[np.float32] | None = None
    """The learner's log-probs in the forward pass of the episode's first optimizer step; with one step per update,
    those of the weights before the update."""
    versions: NDArray[np.int32] | None = None
    """Policy version that sampled each token."""
    turns: list[dict[str, Any]] | None = None
    """Every turn: its `segment`, the range `start`, `stop` of its actions there, the environment's `reward` or null,
    and whether it `terminated` or `truncated` the episode."""


COLUMNS = tuple(field.name for field in fields(EpisodeRecord))
UNKNOWN_VERSION = -1
PER_TOKEN: Mapping[str, type[np.generic]] = {
    "advantages": np.float32, "token_ids": np.int32, "kinds": np.int8, "engine_logprobs": np.float32,
    "learner_logprobs": np.float32, "versions": np.int32,
}  # fmt: skip
"""The per-token columns, each an array `[T]`."""


def records_of_update(groups: Sequence[Group], updated: Updated, update: int) -> list[EpisodeRecord]:
    """Return the records of all groups of one update."""
    trained = {(sample.ordinal, sample.sample): sample for sample in updated.samples}
    return [record for group in groups for record in _updated(group, trained, update)]


def records_of_filtered(filtered: Filtered) -> list[EpisodeRecord]:
    """Return the records of a group that the filter replaced."""
    group = filtered.group
    ended = _ended(
        group.ticket, group.task, group.samples, len(group.samples), EpisodeOutcome.FILTERED, filtered.reason, None
    )
    return ended + _baseline(group)


def records_of_failed(ticket: Ticket, task: Task, failed: Failed, group_size: int) -> list[EpisodeRecord]:
    """Return the records of a failed group: all of its episodes, including those never played."""
    return _ended(ticket, task, failed.samples, group_size, EpisodeOutcome.FAILED, failed.kind, failed.detail)


def records_of_evaluation(groups: Sequence[Group], evaluation_set: str) -> list[EpisodeRecord]:
    """Return the records of one set's episodes; `admitted_version` is the evaluated version, `ordinal` the problem."""
    return [
        replace(record, evaluation_set=evaluation_set)
        for group in groups
        for record in _ended(
            group.ticket, group.task, group.samples, len(group.samples), EpisodeOutcome.EVALUATED, None, None
        )
    ]


def record_of_served(ordinal: int, trajectory: Trajectory, reward: float | None) -> EpisodeRecord:
    """Return the record of the n-th episode of a served policy; `reward` is what its agent reported."""
    score = Unscored(kind="no reward") if reward is None else Scored(value=reward)
    identity = _identity(Ticket(ordinal=ordinal, version=0), trajectory.task, 0)
    return EpisodeRecord(
        **identity, **_played(Sample(trajectory=trajectory, score=score)), outcome=EpisodeOutcome.SERVED
    )


def records_in_flight(ticket: Ticket, task: Task, group_size: int, group: Group | None = None) -> list[EpisodeRecord]:
    """Return the records of a group that was still being played, or not yet trained, when the run ended."""
    played = _ended(ticket, task, group.samples if group else (), group_size, EpisodeOutcome.IN_FLIGHT, None, None)
    return played + (_baseline(group) if group else [])


def as_row(record: EpisodeRecord) -> dict[str, Any]:
    """Return the record as a JSON object, with null where a token has no value."""
    row = {column: getattr(record, column) for column in COLUMNS}
    return row | {name: None if row[name] is None else _nullable(row[name]) for name in PER_TOKEN}


def record_of_row(row: Mapping[str, Any]) -> EpisodeRecord:
    """Return the record of a JSON object made by `as_row`."""
    arrays = {name: _array(row[name], dtype) for name, dtype in PER_TOKEN.items() if row.get(name) is not None}
    return EpisodeRecord(**{**row, **arrays, "outcome": EpisodeOutcome(row["outcome"])})


def _updated(group: Group, trained: Mapping[tuple[int, int], TrainedSample], update: int) -> list[EpisodeRecord]:
    """Return the records of one group of an update; its baseline is last."""
    samples = [
        _record(group.ticket, group.task, index, sample, trained.get((group.ticket.ordinal, index)), update)
        for index, sample in enumerate(group.samples)
    ]
    return samples + _baseline(group, update)


def _baseline(group: Group, update: int | None = None) -> list[EpisodeRecord]:
    """Return the record of the group's baseline episode, if it has one."""
    if group.baseline is None:
        return []
    identity = _identity(group.ticket, group.task, len(group.samples))
    return [EpisodeRecord(**identity, **_played(group.baseline), outcome=EpisodeOutcome.BASELINE, update=update)]


def _record(
    ticket: Ticket, task: Task, index: int, sample: Sample, trained: TrainedSample | None, update: int
) -> EpisodeRecord:
    if trained is None:
        outcome = _broken(sample, EpisodeOutcome.FILTERED, kind="left_out", detail="the update did not train it")
        return EpisodeRecord(**_identity(ticket, task, index), **_played(sample), **outcome)
    learnt: dict[str, Any] = {"outcome": EpisodeOutcome.TRAINED, "update": update} | _learnt(sample, trained)
    return EpisodeRecord(**_identity(ticket, task, index), **_played(sample), **learnt)


def _ended(
    ticket: Ticket,
    task: Task,
    samples: Sequence[Sample],
    group_size: int,
    outcome: EpisodeOutcome,
    kind: str | None,
    detail: str | None,
) -> list[EpisodeRecord]:
    played = [
        EpisodeRecord(
            **_identity(ticket, task, index), **_played(sample), **_broken(sample, outcome, kind=kind, detail=detail)
        )
        for index, sample in enumerate(samples)
    ]
    never_played = [
        EpisodeRecord(**_identity(ticket, task, index), outcome=outcome, failure_kind=kind, failure_detail=detail)
        for index in range(len(samples), group_size)
    ]
    return played + never_played


def _identity(ticket: Ticket, task: Task, index: int) -> dict[str, Any]:
    return {
        "ordinal": ticket.ordinal,
        "sample": index,
        "task": task.id,
        "admitted_version": ticket.version,
        "prompt": [{"role": message.role, "content": message.content} for message in task.messages],
        "answer": task.answer,
    }


def _played(sample: Sample) -> dict[str, Any]:
    """Return the fields of an episode that ended with a trajectory."""
    trajectory = sample.trajectory
    if isinstance(trajectory, Failed):
        return {}
    return _reward(sample) | _tokens(trajectory.segments) | {
        "response": trajectory.response,
        "status": trajectory.status.value,
        "engine": trajectory.engine or None,
        "generate_seconds": round(trajectory.timings.generate_seconds, 6),
        "environment_seconds": round(trajectory.timings.environment_seconds, 6),
        "sampled_tokens": trajectory.action_tokens,
    } | (_surrounded(trajectory) if trajectory.conversation else {})  # fmt: skip


def _surrounded(trajectory: Trajectory) -> dict[str, Any]:
    """Return the fields that only an episode with an environment has."""
    return {
        "conversation": [_message(message) for message in trajectory.conversation],
        "role": trajectory.role,
        "malformed_calls": trajectory.malformed_calls,
        "cut_replies": trajectory.cut_replies,
    }


def _message(message: Message) -> dict[str, Any]:
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
    return {"role": message.role, "content": message.content} | ({"tool_calls": calls} if calls else {})


def _reward(sample: Sample) -> dict[str, Any]:
    if not isinstance(sample.score, Scored):
        return {}
    return {
        "reward": finite(float(sample.score.value)),
        "reward_parts": _finite_parts(sample.score.parts),
        "reward_detail": sample.score.detail or None,
        "reward_per_turn": sample.score.only_turns or None,
        "turn_weight": sample.score.turn_weight or None,
    }


def _tokens(segments: Sequence[Segment]) -> dict[str, Any]:
    acted = _joined([segment.action_mask for segment in segments], bool)
    versions = _joined([segment.versions for segment in segments], np.int32)
    return {
        "segment_lengths": [len(segment.token_ids) for segment in segments],
        "token_ids": _joined([segment.token_ids for segment in segments], np.int32),
        "kinds": _joined([segment.kinds for segment in segments], np.int8),
        "engine_logprobs": np.where(acted, _joined([one.logprobs for one in segments], np.float32), np.float32(np.nan)),
        "versions": np.where(acted, versions, np.int32(UNKNOWN_VERSION)),
        "turns": [{"segment": n} | asdict(turn) for n, segment in enumerate(segments) for turn in segment.turns],
    }


def _learnt(sample: Sample, trained: TrainedSample) -> dict[str, Any]:
    """Return the columns of a trained trajectory; the arrays of `trained` cover only its sampled tokens."""
    assert isinstance(sample.trajectory, Trajectory), "a failed episode cannot have been trained"
    acted = _joined([segment.action_mask for segment in sample.trajectory.segments], bool)
    advantages = trained.advantages
    same = len(advantages) == 0 or bool((advantages == advantages[0]).all())
    return {
        "advantage": finite(float(np.mean(advantages, dtype=np.float64))) if len(advantages) else None,
        "advantages": None if same else _at(acted, advantages),
        "learner_logprobs": _at(acted, trained.logprobs),
    }


def _broken(sample: Sample, outcome: EpisodeOutcome, kind: str | None, detail: str | None) -> dict[str, Any]:
    """Return outcome and failure of an episode that was not trained: its own failure, else its group's."""
    match sample:
        case Sample(trajectory=Failed() as failed):
            return {"outcome": EpisodeOutcome.FAILED, "failure_kind": failed.kind, "failure_detail": failed.detail}
        case Sample(score=Unscored() as unscored):
            return {
                "outcome": EpisodeOutcome.UNSCORED,
                "failure_kind": unscored.kind,
                "failure_detail": unscored.detail,
            }
        case _:
            return {"outcome": outcome, "failure_kind": kind, "failure_detail": detail}


def _joined(arrays: Iterable[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *arrays])


def _at(acted: NDArray[np.bool_], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Spread `values` `[A]` over the sampled tokens, with NaN elsewhere: `[T]`."""
    spread = np.full(len(acted), np.nan, np.float32)
    spread[acted] = values
    return spread


def _nullable(values: NDArray[Any]) -> list[float | int | None]:
    """Return the values as JSON: floats with nine significant digits, which reproduce every float32 in half the text of
    a float64."""
    if values.dtype.kind == "f":
        return [finite(float(f"{value:.9g}")) for value in values.tolist()]
    return [None if value == UNKNOWN_VERSION else value for value in values.tolist()]


def _array(values: Sequence[float | None], dtype: type[np.generic]) -> NDArray[Any]:
    unknown = np.nan if np.issubdtype(dtype, np.floating) else UNKNOWN_VERSION
    return np.array([unknown if value is None else value for value in values], dtype)


def _finite_parts(parts: Mapping[str, float]) -> dict[str, float | None]:
    return {name: finite(float(value)) for name, value in parts.items()}
