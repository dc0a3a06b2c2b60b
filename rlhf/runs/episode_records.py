"""Groups whose outcome is known, and the records that are made of their episodes.

Knowing an outcome costs microseconds; making a record takes time for every token, so a thread does it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.images import Image
from rlhf.runs.folder import IMAGES
from rlhf.runs.image_files import image_name
from rlhf.runs.jsonl import finite
from rlhf.runs.records import UNKNOWN_VERSION, EpisodeOutcome, EpisodeRecord
from rlhf.types import (
    Failed,
    Filtered,
    Group,
    Message,
    PolicyVersion,
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

LEFT_OUT, FROZEN = "left_out", "frozen"
"""Why an episode of an update was not trained by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedGroup:
    """A group whose outcome is known, of `size` episodes; those beyond its samples were never played. An episode has
    the outcome of its group, unless it failed itself or was `trained`.
    """

    group: Group
    size: int
    outcome: EpisodeOutcome
    failure_kind: str | None = None
    failure_detail: str | None = None
    update: int | None = None
    trained: Mapping[int, TrainedSample] = field(default_factory=dict)
    """What was learnt of samples, by their index."""
    frozen: tuple[str, ...] = ()
    """The policies that this update did not train."""
    evaluation_set: str | None = None

    @property
    def outcomes(self) -> Iterator[EpisodeOutcome]:
        """The outcomes of its episodes, and of its baseline."""
        if self.group.second_use:
            yield from [EpisodeOutcome.SECOND_USE] * len(self.trained)
            return
        for index in range(self.size):
            yield _outcome(self, index)[0]
        if self.group.baseline is not None:
            yield EpisodeOutcome.BASELINE


def ended_in_update(groups: Sequence[Group], updated: Updated, update: int) -> list[EndedGroup]:
    """Return the groups of one update."""
    trained: dict[int, dict[int, TrainedSample]] = defaultdict(dict)
    for sample in updated.samples:
        trained[sample.ordinal][sample.sample] = sample
    return [
        EndedGroup(
            group=group,
            size=len(group.samples),
            outcome=EpisodeOutcome.FILTERED,
            failure_kind=LEFT_OUT,
            failure_detail="the update ended before it used the episode (trainer.kl.stop)",
            update=update,
            trained=trained[group.ticket.ordinal],
            frozen=updated.frozen,
        )
        for group in groups
    ]


def ended_by_filter(filtered: Filtered) -> EndedGroup:
    """Return a group that the filter replaced."""
    group = filtered.group
    return EndedGroup(
        group=group, size=len(group.samples), outcome=EpisodeOutcome.FILTERED, failure_kind=filtered.reason
    )


def ended_by_failure(ticket: Ticket, task: Task, failed: Failed, size: int) -> EndedGroup:
    """Return a failed group."""
    return EndedGroup(
        group=Group(ticket=ticket, task=task, samples=failed.samples),
        size=size,
        outcome=EpisodeOutcome.FAILED,
        failure_kind=failed.kind,
        failure_detail=failed.detail,
    )


def ended_in_evaluation(groups: Sequence[Group], evaluation_set: str) -> list[EndedGroup]:
    """Return the groups of one set; a ticket's version is the evaluated version, its ordinal the problem."""
    return [
        EndedGroup(
            group=group, size=len(group.samples), outcome=EpisodeOutcome.EVALUATED, evaluation_set=evaluation_set
        )
        for group in groups
    ]


def ended_in_flight(ticket: Ticket, task: Task, size: int, group: Group | None = None) -> EndedGroup:
    """Return a group that was still being played, or not yet trained, when the run ended."""
    played = group or Group(ticket=ticket, task=task, samples=())
    return EndedGroup(group=played, size=size, outcome=EpisodeOutcome.IN_FLIGHT)


def ended_served(ordinal: int, trajectory: Trajectory, reward: float | None, version: PolicyVersion) -> EndedGroup:
    """Return an episode of a served policy, whose weights are of `version`; `reward` is what its agent reported."""
    acted = [np.where(part.sampled_mask, np.int32(version), np.int32(UNKNOWN_VERSION)) for part in trajectory.segments]
    parts = zip(trajectory.segments, acted, strict=True)
    trajectory = replace(trajectory, segments=tuple(replace(part, versions=versions) for part, versions in parts))
    score = Unscored(kind="no reward") if reward is None else Scored(value=reward)
    sample = Sample(trajectory=trajectory, score=score)
    ticket = Ticket(ordinal=ordinal, version=version)
    group = Group(ticket=ticket, task=trajectory.task, samples=(sample,))
    return EndedGroup(group=group, size=1, outcome=EpisodeOutcome.SERVED)


def records_of(ended: EndedGroup) -> Iterator[EpisodeRecord]:
    """Iterate over the records of a group's episodes; that of its baseline is last."""
    group = ended.group
    if group.second_use:
        yield from _second_uses(ended)
        return
    for index in range(ended.size):
        sample = group.samples[index] if index < len(group.samples) else None
        outcome, kind, detail = _outcome(ended, index)
        learnt = _learnt(sample, ended.trained[index]) if sample and index in ended.trained else {}
        update = ended.update if learnt else None
        columns = {"outcome": outcome, "failure_kind": kind, "failure_detail": detail, "update": update} | learnt
        yield _record(ended, index, sample, columns)
    if group.baseline is not None:
        yield _record(ended, ended.size, group.baseline, {"outcome": EpisodeOutcome.BASELINE, "update": ended.update})


def images_of(ended: EndedGroup) -> Iterator[Image]:
    """Iterate over the images of a group's messages and tokens."""
    group = ended.group
    samples = (sample.trajectory for sample in (*group.samples, group.baseline) if sample is not None)
    played = [one for one in samples if isinstance(one, Trajectory)]
    for message in chain(group.task.messages, *(one.conversation for one in played)):
        yield from message.images
    yield from (placed.features.image for one in played for segment in one.segments for placed in segment.images)


def _second_uses(ended: EndedGroup) -> Iterator[EpisodeRecord]:
    """Iterate over the second uses of samples; their tokens are in the records of the first."""
    for index, trained in sorted(ended.trained.items()):
        advantage = _learnt(ended.group.samples[index], trained)["advantage"]
        columns = {"outcome": EpisodeOutcome.SECOND_USE, "update": ended.update, "advantage": advantage}
        yield _record(ended, index, None, columns)


def _outcome(ended: EndedGroup, index: int) -> tuple[EpisodeOutcome, str | None, str | None]:
    """Return an episode's outcome, and why it was not trained."""
    if index in ended.trained:
        return EpisodeOutcome.TRAINED, None, None
    match ended.group.samples[index] if index < len(ended.group.samples) else None:
        case Sample(trajectory=Failed() as failed):
            return EpisodeOutcome.FAILED, failed.kind, failed.detail
        case Sample(score=Unscored() as unscored) if ended.outcome is not EpisodeOutcome.SERVED:
            return EpisodeOutcome.UNSCORED, unscored.kind, unscored.detail
        case Sample(trajectory=Trajectory(policy=policy)) if policy in ended.frozen:
            return EpisodeOutcome.FILTERED, FROZEN, "its policy is not trained"
        case _:
            return ended.outcome, ended.failure_kind, ended.failure_detail


def _record(ended: EndedGroup, index: int, sample: Sample | None, columns: Mapping[str, Any]) -> EpisodeRecord:
    group = ended.group
    return EpisodeRecord(
        ordinal=group.ticket.ordinal,
        sample=index,
        task=group.task.id,
        evaluation_set=ended.evaluation_set,
        admitted_version=group.ticket.version,
        prompt=[{"role": one.role, "content": one.content} | _hashes(one) for one in group.task.messages],
        answer=group.task.answer,
        **(_played(sample) if sample else {}),
        **columns,
    )


def _played(sample: Sample) -> dict[str, Any]:
    """Return the fields of an episode that ended with a trajectory."""
    trajectory = sample.trajectory
    if isinstance(trajectory, Failed):
        return {}
    surrounded = {  # only with an environment
        "conversation": [_message(message) for message in trajectory.conversation],
        "role": trajectory.role,
        "malformed_calls": trajectory.malformed_calls,
        "cut_replies": trajectory.cut_replies,
        "constrained_replies": trajectory.constrained_replies,
    }
    return _reward(sample) | _tokens(trajectory.segments) | {
        "response": trajectory.response,
        "status": trajectory.status.value,
        "policy": trajectory.policy or None,
        "engine": trajectory.engine or None,
        "generate_seconds": round(trajectory.timings.generate_seconds, 6),
        "environment_seconds": round(trajectory.timings.environment_seconds, 6),
        "sampled_tokens": trajectory.action_tokens,
    } | (surrounded if trajectory.conversation else {})  # fmt: skip


def _message(message: Message) -> dict[str, Any]:
    calls = [{"id": call.id, "name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
    more = {"tool_calls": calls, "tool_call_id": message.tool_call_id}
    said = {"role": message.role, "content": message.content} | {name: value for name, value in more.items() if value}
    return said | _hashes(message)


def _hashes(message: Message) -> dict[str, list[str]]:
    return {"images": [image.sha256 for image in message.images]} if message.images else {}


def _reward(sample: Sample) -> dict[str, Any]:
    if not isinstance(sample.score, Scored):
        return {}
    return {
        "reward": finite(float(sample.score.value)),
        "reward_parts": {name: finite(float(value)) for name, value in sample.score.parts.items()},
        "reward_detail": sample.score.detail or None,
        "reward_per_turn": sample.score.only_turns or None,
        "turn_weight": sample.score.turn_weight or None,
    }


def _tokens(segments: Sequence[Segment]) -> dict[str, Any]:
    sampled = _joined([segment.sampled_mask for segment in segments], bool)
    versions = _joined([segment.versions for segment in segments], np.int32)
    threads = [segment.thread for segment in segments]
    return {
        "segment_threads": None if set(threads) <= {"main"} else threads,
        "segment_lengths": [len(segment.token_ids) for segment in segments],
        "token_ids": _joined([segment.token_ids for segment in segments], np.int32),
        "kinds": _joined([segment.kinds for segment in segments], np.int8),
        "behaviour_logprobs": np.where(
            sampled, _joined([one.behaviour_logprobs for one in segments], np.float32), np.float32(np.nan)
        ),
        "versions": np.where(sampled, versions, np.int32(UNKNOWN_VERSION)),
        "turns": [{"segment": n, **asdict(turn)} for n, segment in enumerate(segments) for turn in segment.turns],
        "images": [
            {"segment": n, "start": one.start, "stop": one.stop, "sha256": one.features.image.sha256,
             "file": f"{IMAGES}/{image_name(one.features.image)}"}
            for n, segment in enumerate(segments)
            for one in segment.images
        ] or None,
    }  # fmt: skip


def _learnt(sample: Sample, trained: TrainedSample) -> dict[str, Any]:
    """Return the columns of a trained trajectory; the arrays of `trained` cover only its sampled tokens."""
    assert isinstance(sample.trajectory, Trajectory), "a failed episode cannot have been trained"
    acted = _joined([segment.action_mask for segment in sample.trajectory.segments], bool)
    advantages = trained.advantages
    same = len(advantages) == 0 or bool((advantages == advantages[0]).all())
    return {
        "advantage": finite(float(np.mean(advantages, dtype=np.float64))) if len(advantages) else None,
        "advantages": None if same else _at(acted, advantages),
        "proximal_logprobs": _at(acted, trained.proximal_logprobs),
        "entropies": _at(acted, trained.entropies),
    }


def _joined(arrays: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.zeros(0, dtype), *arrays])


def _at(acted: NDArray[np.bool_], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Spread `values` `[A]` over the sampled tokens, with NaN elsewhere: `[T]`."""
    spread = np.full(len(acted), np.nan, np.float32)
    spread[acted] = values
    return spread
