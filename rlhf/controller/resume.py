"""Resume a run: from which checkpoint, with which trainer state, and whether bit for bit.

Everything written after the checkpoint is discarded: its episodes are played again, with the same seeds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from rlhf.config import flatten, read_yaml
from rlhf.controller.trainer_state import TrainerState, check_records, read_trainer_state
from rlhf.errors import CheckpointError, ConfigError
from rlhf.recipe.schema import Recipe
from rlhf.runs.episode_parts import drop_parts_after, lost_parts
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import read_jsonl
from rlhf.trainer.checkpoint import CheckpointManifest, checkpoints, read_checkpoint, unfinished, verify
from rlhf.types import PolicyVersion

DATA_KEYS = ("seed", "kind", "kind_arguments", "data", "trainer.groups_per_update")
"""Settings that determine the order of tasks. They cannot change during a run."""
BY_CONTENT = (".path", ".episodes")
"""Ends of keys of data that may have another place; `rlhf.runs.provenance` compares its content."""
TIMES, IDLE = "seconds/", "idle/"
"""Beginning of the names of an update's logged times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """A complete checkpoint, and the state of the run at it."""

    path: Path
    manifest: CheckpointManifest
    trainer_state: TrainerState
    times: Mapping[str, float] = field(default_factory=dict)
    """The logged times of the checkpoint's update; empty where the run ended before it logged them."""

    @property
    def version(self) -> PolicyVersion:
        return self.manifest.version


def resume_point(
    recipe: Recipe, folder: RunFolder, tell: Callable[[str], None], *, start_over: bool = False
) -> ResumePoint | None:
    """Return the newest complete checkpoint of the run in `folder`, with trainer state and records; None when there is
    no checkpoint yet, or when none is usable and `start_over` is set.

    Reports what was found, refused and changed. Raises `ConfigError` for a recipe that changes the data, and
    `CheckpointError` when there are checkpoints and none is usable.
    """
    point, refused = newest_usable(folder)
    for why in [*(f"{path} was never finished" for path in unfinished(folder.checkpoints)), *refused]:
        tell(f"not resumed from: {why}")
    if point is None:
        if not start_over and any(any(folder.checkpoints.glob(f"{sort}-*")) for sort in ("version", "damaged")):
            raise CheckpointError(
                f"{folder.checkpoints} has no usable checkpoint ({len(refused)} refused; newest: "
                f"{refused[0] if refused else 'set aside before'}); repair one, or keep them and start over with "
                "--start-over"
            )
        tell(f"{folder.path} has no checkpoint to resume from: starting from the beginning")
        return None
    tell(f"resuming from {point.path.name}: {point.version} of {recipe.trainer.updates} updates are done")
    for name, last in point.trainer_state.parts.items():
        for words in lost_parts(folder.path / name, last):
            tell(words)
    for key, (before, now) in changes(read_yaml(folder.recipe), recipe.model_dump(mode="json")).items():
        if any(key == fixed or key.startswith(f"{fixed}.") for fixed in DATA_KEYS) and not key.endswith(BY_CONTENT):
            raise ConfigError(f"{key} was {before!r} in {folder.path} and is {now!r}: a resumed run keeps its data")
        tell(f"changed since: {key} {before!r} → {now!r}")
    if (plan := plan_of(recipe)) != point.trainer_state.plan:
        tell(f"resuming under another plan ({point.trainer_state.plan}; now {plan}): exact in data, not in bits")
    return point


def newest_usable(folder: RunFolder) -> tuple[ResumePoint | None, list[str]]:
    """Find the newest usable checkpoint, verified completely, and why each newer one was refused."""
    refused = []
    for path in reversed(checkpoints(folder.checkpoints)):
        try:
            manifest, trainer_state = read_checkpoint(path), read_trainer_state(path)
            check_records(folder.path, trainer_state)
            verify(path, manifest)
        except CheckpointError as error:
            refused.append(str(error))
        else:
            times = logged_times(folder, trainer_state)
            return ResumePoint(path=path, manifest=manifest, trainer_state=trainer_state, times=times), refused
    return None, refused


def logged_times(folder: RunFolder, trainer_state: TrainerState) -> dict[str, float]:
    """Return the times in the line of `metrics.jsonl` that follows the checkpoint; none where that line is incomplete
    or damaged."""
    lines = trainer_state.lines
    if folder.metrics.name not in lines or not folder.metrics.exists():
        return {}
    with folder.metrics.open("rb") as file:
        file.seek(lines[folder.metrics.name])
        try:
            line = json.loads(file.readline())
        except ValueError:
            return {}
    return {name: value for name, value in line.items() if name.startswith((TIMES, IDLE)) and value is not None}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys whose values differ, with both values."""
    old, new = dict(flatten(before)), dict(flatten(now))
    return {key: (old.get(key), new.get(key)) for key in (*old, *new) if old.get(key) != new.get(key)}


def rewind(folder: RunFolder, point: ResumePoint) -> None:
    """Rename newer, unusable checkpoints to `damaged-NUMBER`, then cut the records down to those of this checkpoint."""
    for path in checkpoints(folder.checkpoints):
        if path.name > point.path.name:
            folder.check()
            path.rename(damaged_name(path))
    for name, length in point.trainer_state.lines.items():
        folder.check()
        if (folder.path / name).exists():
            os.truncate(folder.path / name, length)
    for name, last in point.trainer_state.parts.items():
        folder.check()
        drop_parts_after(folder.path / name, last)


def damaged_name(path: Path) -> Path:
    plain = path.with_name(path.name.replace("version", "damaged"))
    return next(
        free for n in count() if not (free := plain.with_name(f"{plain.name}.{n}") if n else plain).exists()
    )  # an earlier one may have been damaged at the same update


def reported_updates(folder: RunFolder) -> Iterator[tuple[PolicyVersion, Mapping[str, float]]]:
    for line in read_jsonl(folder.metrics):
        yield line["update"], line


def plan_of(recipe: Recipe) -> str:
    """Describe the placement and numbers of threads: bitwise results depend on them as well as on the recipe's
    mathematics."""
    learner, rollout = recipe.trainer.deepspeed, recipe.rollout
    ranks = f"{learner.ranks} rank(s) of {_share(learner.cpus_per_rank, learner.gpus_per_rank)}"
    engines = f"{rollout.engines} engine(s) of {_share(rollout.cpus_per_engine, rollout.gpus_per_engine)}"
    sizes = rollout.tensor_parallel_sizes
    parallel = f" x {', '.join(map(str, dict.fromkeys(sizes)))}" if max(sizes) > 1 else ""
    return f"{ranks}, ZeRO stage {learner.zero_stage}, {recipe.model.dtype}; {engines}{parallel}"


def _share(cores: float, gpus: float) -> str:
    return f"{cores:g} core(s)" + (f" and {gpus:g} GPU(s)" if gpus else "")
