"""Going on with a run: from which checkpoint, with which books, and how exactly.

Everything that was written after the checkpoint is cut off: what was played then is played again, with the same seeds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf.config import read_yaml
from rlhf.errors import CheckpointError, ConfigError
from rlhf.recipe import Recipe
from rlhf.rollout.evaluation import Evaluation, SetResult
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import read_jsonl
from rlhf.trainer.buffer import Accounts
from rlhf.trainer.checkpoint import CheckpointManifest, checkpoints, newest_complete
from rlhf.types import PolicyVersion

STANDING = "standing.json"
DATA_KEYS = ("seed", "kind", "data", "trainer.groups_per_update")
"""What decides which task comes when. A run keeps them for its life."""
Evaluations = tuple[tuple[PolicyVersion, Evaluation], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a run stood at a checkpoint, beside its weights and ordinals."""

    plan: str
    """`plan_of` the run."""
    groups: Accounts
    episodes: Mapping[str, int]
    """Records by fate."""
    lines: Mapping[str, int]
    """Lengths of the files of records in bytes, by name."""
    metrics: Mapping[str, float]
    """Of the update behind the checkpoint: it is reported after the checkpoint is written."""
    evaluations: Evaluations
    """Those before this checkpoint, without their groups."""
    held_out: tuple[Mapping[str, Mapping[str, Any]], ...] = ()
    """The same of a run without episodes: of every set its `HeldOut`."""
    wall_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """A complete checkpoint, and where the run stood."""

    path: Path
    manifest: CheckpointManifest
    standing: Standing

    @property
    def version(self) -> PolicyVersion:
        return self.manifest.version


def write_standing(checkpoint: Path, standing: Standing) -> None:
    (checkpoint / STANDING).write_text(json.dumps(asdict(standing)))


def read_standing(checkpoint: Path) -> Standing:
    """Raises `CheckpointError`."""
    try:
        values = json.loads((checkpoint / STANDING).read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{checkpoint} holds no {STANDING}: this run cannot be resumed from it") from None
    evaluations = tuple((version, _evaluation(sets["sets"])) for version, sets in values["evaluations"])
    groups, held_out = Accounts(**values["groups"]), tuple(values["held_out"])
    return Standing(**{**values, "groups": groups, "evaluations": evaluations, "held_out": held_out})


def resume_point(recipe: Recipe, folder: RunFolder, tell: Callable[[str], None]) -> ResumePoint | None:
    """The newest complete checkpoint of the run in `folder`; None when it has not come to one.

    Says what was found, what was refused, and what changed. Raises `ConfigError` for a recipe that asks for other data.
    """
    found, refused = newest_complete(folder.checkpoints)
    for why in refused:
        tell(f"not resumed from: {why}")
    if found is None:
        tell(f"{folder.path} has no checkpoint to resume from: starting anew")
        return None
    path, manifest = found
    point = ResumePoint(path=path, manifest=manifest, standing=read_standing(path))
    tell(f"resuming from {path.name}: {point.version} of {recipe.trainer.updates} updates are behind it")
    for key, (before, now) in changes(read_yaml(folder.recipe), recipe.model_dump(mode="json")).items():
        if any(key == fixed or key.startswith(f"{fixed}.") for fixed in DATA_KEYS):
            raise ConfigError(f"{key} was {before!r} in {folder.path} and is {now!r}: a resumed run keeps its data")
        tell(f"changed since: {key} {before!r} → {now!r}")
    if (plan := plan_of(recipe)) != point.standing.plan:
        tell(f"resuming under another plan ({point.standing.plan}; now {plan}): exact in data, not in bits")
    return point


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The dotted keys whose values differ, with both."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    return {key: (old.get(key), new.get(key)) for key in (*old, *new) if old.get(key) != new.get(key)}


def rewind(folder: RunFolder, point: ResumePoint) -> None:
    """Cut off what was written after the checkpoint, and put damaged ones out of the way, as `damaged-NUMBER`.

    Raises `CheckpointError` when there is less than at that time.
    """
    for path in checkpoints(folder.checkpoints):
        if path.name > point.path.name:
            path.rename(path.with_name(path.name.replace("version", "damaged")))
    for name, length in point.standing.lines.items():
        path = folder.path / name
        there = path.stat().st_size if path.exists() else 0
        if there < length:
            raise CheckpointError(f"{path} has {there} bytes, and had {length} at the checkpoint: this run was damaged")
        os.truncate(path, length)


def reported_updates(folder: RunFolder) -> Iterator[tuple[PolicyVersion, Mapping[str, float]]]:
    """Every update that was reported, with its metrics."""
    for line in read_jsonl(folder.metrics):
        yield line["update"], line


def plan_of(recipe: Recipe) -> str:
    """What the bits of a run depend on besides the recipe's mathematics: who computes what with how many threads."""
    learner, rollout = recipe.trainer.deepspeed, recipe.rollout
    ranks = f"{learner.ranks} rank(s) of {_share(learner.cpus_per_rank, learner.gpus_per_rank)}"
    engines = f"{rollout.engines} engine(s) of {_share(rollout.cpus_per_engine, rollout.gpus_per_engine)}"
    parallel = f" x {rollout.tensor_parallel_size}" if rollout.tensor_parallel_size > 1 else ""
    return f"{ranks}, ZeRO stage {learner.zero_stage}, {recipe.model.dtype}; {engines}{parallel}"


def _share(cores: float, gpus: float) -> str:
    return f"{cores:g} core(s)" + (f" and {gpus:g} GPU(s)" if gpus else "")


def _evaluation(sets: list[dict[str, Any]]) -> Evaluation:
    return Evaluation(sets=tuple(SetResult(**{**one, "groups": ()}) for one in sets))


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
