"""Read recorded episodes back as groups with bit-identical tokens, log-probs, versions, turns and rewards. Their images
have a hash and a place; `rlhf.runs.image_files.with_features` adds what the model sees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import DataError
from rlhf.images import Image, ImageFeatures, PlacedImage
from rlhf.runs.episode_parts import parts_in, read_episodes
from rlhf.runs.folder import EPISODES, RunFolder
from rlhf.runs.image_files import image_folder, recorded_file
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord
from rlhf.types import (
    EpisodeStatus,
    Failed,
    Group,
    Message,
    Sample,
    Scored,
    Segment,
    Task,
    Ticket,
    Timings,
    TokenKind,
    ToolCall,
    Trajectory,
    Turn,
    Unscored,
)


def recorded_episodes(path: str) -> Path:
    """Return the recorded episodes at `path` or in the run folder there: a folder of parts, a part, or a JSONL file.

    Raises `DataError` if there are none.
    """
    named = Path(path).expanduser()
    found = RunFolder(named).episodes if (named / EPISODES).is_dir() else named
    if not (parts_in(found) if found.is_dir() else found.is_file()):
        raise DataError(f"{found}: there are no recorded episodes; give a run folder, its episodes folder, or a file")
    return found


def recorded_groups(file: Path, *, sees: bool = False) -> list[Group]:
    """Read every group of `file`, in the order of ordinals. Failed and unscored episodes keep their status.

    Raises `DataError` unless the file has the training episodes of one run, with every column that training reads, and
    for images unless the model `sees` and their files are there.
    """
    groups = groups_of(map(partial(_for_training, file, sees), read_episodes(file)), file)
    if not groups:
        raise DataError(f"{file} has no episodes")
    return sorted(groups, key=lambda group: group.ticket.ordinal)


def groups_of(records: Iterable[EpisodeRecord], file: Path) -> list[Group]:
    """Return the groups of these records of `file`, in their order. Raises `DataError` as `recorded_groups`."""
    played: dict[int, dict[int, EpisodeRecord]] = defaultdict(dict)
    for record in records:
        if record.outcome is EpisodeOutcome.SECOND_USE:
            continue
        if record.sample in played[record.ordinal]:
            raise DataError(f"{file} has sample {record.sample} of group {record.ordinal} twice; give one run's file")
        played[record.ordinal][record.sample] = record
    return [_group([episodes[sample] for sample in sorted(episodes)], file) for episodes in played.values()]


def _for_training(file: Path, sees: bool, record: EpisodeRecord) -> EpisodeRecord:
    if record.outcome is EpisodeOutcome.EVALUATED:
        raise DataError(f"{file} holds episodes of evaluations, which are held out; give a run's episodes")
    if record.images and not sees:
        raise DataError(f"{file} has episodes with images, and the recipe no model.tower; set model.tower: frozen")
    for one in record.images or ():
        recorded_file(image_folder(file), one["sha256"])
    return record


def groups_again(folder: Path, ordinals: Collection[int]) -> dict[int, Group]:
    """Read the groups of these ordinals, from the newest part of `folder` back until all are found. A group is in one
    part, which may be lost. Raises `DataError` for records without what training reads."""
    found: dict[int, Group] = {}
    for part in reversed(parts_in(folder)):
        if len(found) == len(ordinals):
            break
        records = (record for record in read_episodes(part) if record.ordinal in ordinals)
        found |= {group.ticket.ordinal: group for group in groups_of(records, part)}
    return found


def _group(records: Sequence[EpisodeRecord], file: Path) -> Group:
    first = records[0]
    task = Task(
        id=first.task,
        messages=tuple(map(_message, first.prompt)),
        answer=first.answer,
    )
    beside = [record for record in records if record.outcome is EpisodeOutcome.BASELINE]
    return Group(
        ticket=Ticket(ordinal=first.ordinal, version=first.admitted_version),
        task=task,
        samples=tuple(_sample(record, task, file) for record in records if record not in beside),
        baseline=next((_sample(record, task, file) for record in beside), None),
    )


def _sample(record: EpisodeRecord, task: Task, file: Path) -> Sample:
    kind, detail = record.failure_kind or record.outcome.value, record.failure_detail or ""
    if record.outcome is EpisodeOutcome.FAILED or record.token_ids is None or record.status is None:
        return Sample(trajectory=Failed(kind=kind, detail=detail), score=Unscored(kind="not_played", detail=kind))
    trajectory = Trajectory(
        task=task,
        segments=_segments(record, file),
        status=EpisodeStatus(record.status),
        response=record.response or "",
        engine=record.engine or "",
        role=record.role or "agent",
        policy=record.policy or "",
        conversation=tuple(map(_message, record.conversation or ())),
        malformed_calls=record.malformed_calls or 0,
        cut_replies=record.cut_replies or 0,
        constrained_replies=record.constrained_replies or 0,
        timings=Timings(
            generate_seconds=record.generate_seconds or 0.0, environment_seconds=record.environment_seconds or 0.0
        ),
    )
    if record.reward is None:
        return Sample(trajectory=trajectory, score=Unscored(kind=kind, detail=detail))
    parts = {name: value for name, value in (record.reward_parts or {}).items() if value is not None}
    only_turns = bool(record.reward_per_turn)
    weight = float(only_turns) if record.turn_weight is None else record.turn_weight  # older records have no weight
    score = Scored(value=record.reward, parts=parts, turn_weight=weight, only_turns=only_turns)
    return Sample(trajectory=trajectory, score=score)


def _message(said: Mapping[str, Any]) -> Message:
    """Return a message as it was recorded; calls have no id in records of earlier versions."""
    calls = tuple(ToolCall(**{"id": "", **call}) for call in said.get("tool_calls", ()))
    images = tuple(Image(sha256=one, data=b"") for one in said.get("images", ()))
    return Message(
        role=said["role"],
        content=said["content"],
        images=images,
        tool_calls=calls,
        tool_call_id=said.get("tool_call_id"),
    )


def _segments(record: EpisodeRecord, file: Path) -> tuple[Segment, ...]:
    token_ids, kinds, logprobs, versions = record.token_ids, record.kinds, record.behaviour_logprobs, record.versions
    stops = np.cumsum([0, *(record.segment_lengths or ())])
    if token_ids is None or kinds is None or logprobs is None or versions is None:
        raise _incomplete(record, file)
    sampled = (kinds == TokenKind.ACTION) | (kinds == TokenKind.UNTRAINED)
    if any(len(column) != stops[-1] for column in (token_ids, kinds, logprobs, versions)):
        raise _incomplete(record, file)
    if not np.isfinite(logprobs[sampled]).all():
        raise _incomplete(record, file)
    logprobs = np.where(sampled, logprobs, np.float32(0))
    threads = record.segment_threads or ["main"] * (len(stops) - 1)
    return tuple(
        Segment(
            token_ids=token_ids[start:stop],
            kinds=kinds[start:stop],
            behaviour_logprobs=logprobs[start:stop],
            versions=versions[start:stop],
            turns=_turns(record, number),
            thread=threads[number],
            images=_images(record, number, token_ids[start:stop]),
        )
        for number, (start, stop) in enumerate(pairwise(stops))
    )


def _incomplete(record: EpisodeRecord, file: Path) -> DataError:
    return DataError(
        f"{file}: sample {record.sample} of group {record.ordinal} lacks tokens, or log-probs of sampled ones"
    )


def _turns(record: EpisodeRecord, segment: int) -> tuple[Turn, ...]:
    return tuple(
        Turn(**{name: value for name, value in turn.items() if name != "segment"})
        for turn in record.turns or ()
        if turn["segment"] == segment
    )


def _images(record: EpisodeRecord, segment: int, token_ids: NDArray[np.int32]) -> tuple[PlacedImage, ...]:
    """Return the images of a segment, without tensors."""

    def placed(start: int, stop: int, digest: str) -> PlacedImage:
        image, own = Image(sha256=digest, data=b""), tuple(token_ids[start:stop].tolist())
        features = ImageFeatures(image=image, tensors={}, checksum=0, size=(0, 0), token_ids=own, mark=own[0])
        return PlacedImage(features=features, start=start)

    own = (one for one in record.images or () if one["segment"] == segment)
    return tuple(placed(one["start"], one["stop"], one["sha256"]) for one in own)
