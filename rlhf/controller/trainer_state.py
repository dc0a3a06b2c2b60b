"""The state of a run at a checkpoint: counters and records, in `trainer_state.json` next to the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlhf.data.learnability import TaskChoices
from rlhf.errors import CheckpointError
from rlhf.rollout.evaluation import Evaluation, SetResult
from rlhf.trainer.buffer import Accounts
from rlhf.trainer.replay import Waiting
from rlhf.types import PolicyVersion

TRAINER_STATE = "trainer_state.json"
VersionedEvaluations = tuple[tuple[PolicyVersion, Evaluation], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """The state of a run at a checkpoint, except weights and ordinals."""

    plan: str
    """The result of `plan_of` for the run."""
    groups: Accounts
    episodes: Mapping[str, int]
    """Records by outcome."""
    lines: Mapping[str, int]
    """Lengths of the record files in bytes, by name."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """Number of parts in each folder of episodes, by name."""
    metrics: Mapping[str, float]
    """Metrics of the checkpoint's update: it is reported after the checkpoint is written."""
    evaluations: VersionedEvaluations
    """The evaluations before this checkpoint, without their groups."""
    wall_seconds: float
    provenance: Mapping[str, str] = field(default_factory=dict)
    """Digests of the run's inputs (`rlhf.runs.provenance`)."""
    choices: TaskChoices = field(default_factory=TaskChoices)
    """The state of the task order."""
    second_uses: Waiting = ()
    """The groups that wait for their second use."""


def write_trainer_state(checkpoint: Path, trainer_state: TrainerState) -> None:
    (checkpoint / TRAINER_STATE).write_text(json.dumps(asdict(trainer_state)))


def read_trainer_state(checkpoint: Path) -> TrainerState:
    """Return the state in a checkpoint. Raises `CheckpointError`, also for a state that cannot be read."""
    try:
        values = json.loads((checkpoint / TRAINER_STATE).read_text())
        evaluations = tuple((version, _evaluation(sets["sets"])) for version, sets in values["evaluations"])
        groups = Accounts(**values["groups"])
        choices = _choices(**values.get("choices", {}))  # older checkpoints have none
        waiting = tuple((update, ordinal) for update, ordinal in values.get("second_uses", ()))
        read = {"groups": groups, "evaluations": evaluations, "choices": choices, "second_uses": waiting}
        return TrainerState(**{**values, **read})
    except FileNotFoundError:
        raise CheckpointError(f"{checkpoint} has no {TRAINER_STATE}: this run cannot be resumed from it") from None
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{checkpoint / TRAINER_STATE} cannot be read ({error})") from None


def check_records(folder: Path, trainer_state: TrainerState) -> None:
    """Check that the records counted by the state exist. Raises `CheckpointError` when a file is shorter than at that
    time, or has the length but was never filled."""
    for name, length in trainer_state.lines.items():
        path = folder / name
        there = path.stat().st_size if path.exists() else 0
        if there < length:
            raise CheckpointError(f"{path} has {there} bytes, but had {length} at the checkpoint: records are lost")
        if not length:
            continue
        with path.open("rb") as file:
            file.seek(length - 1)
            if file.read(1) != b"\n":
                raise CheckpointError(f"{path} is damaged: it has no line end where the checkpoint's records end")


def _choices(*, counted: Sequence[Any] = (), chosen: Sequence[Any] = (), trained: int = -1) -> TaskChoices:
    return TaskChoices(counted=tuple(map(tuple, counted)), chosen=tuple(map(tuple, chosen)), trained=trained)


def _evaluation(sets: list[dict[str, Any]]) -> Evaluation:
    return Evaluation(sets=tuple(SetResult(**{**one, "groups": ()}) for one in sets))
