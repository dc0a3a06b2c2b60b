"""Checks a run by what it recorded: the fate of every sample, its tokens, rewards and versions, evaluations and
checkpoints. What the run says of itself in metrics and summary is computed again from the records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import isclose, isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlhf.apps.audit.episodes import Asked, faults_of_episode, texts_of
from rlhf.apps.audit.recomputation import Advantages, advantages_again, evaluation_again, metrics_again
from rlhf.chat.image_reader import ImageReader
from rlhf.config import flatten
from rlhf.controller.callbacks import due
from rlhf.controller.trainer_state import read_trainer_state
from rlhf.errors import CheckpointError, DataError, UserError
from rlhf.recipe.schema import Recipe
from rlhf.rollout.evaluation import Evaluation
from rlhf.runs.episode_parts import NEVER_ADMITTED, damage, lost_parts, part_number, parts_in, read_episodes
from rlhf.runs.episode_records import LEFT_OUT
from rlhf.runs.folder import IMAGES, RunFolder
from rlhf.runs.image_files import with_features
from rlhf.runs.recorded_episodes import groups_of
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord
from rlhf.runs.stored_run import StoredRun
from rlhf.runs.summary import SAVED
from rlhf.trainer.checkpoint import checkpoints, model_folder, read_checkpoint, verify
from rlhf.trainer.config import ReplayConfig
from rlhf.trainer.replay import GroupReplay
from rlhf.types import Group

SHOWN = 3
"""Maximum number of faults in a line."""
ROUNDED, MICRO = 1e-5, 1e-6
"""Relative and absolute differences that float32 and recorded digits explain."""
FINISHED = "finished"
LEARNT = (EpisodeOutcome.TRAINED, EpisodeOutcome.SECOND_USE)
Recipes = Sequence[tuple[float, Recipe]]
"""The recipes of a run, in order, each with the last update that it made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCheck:
    """The result of one check: how much was `checked`, and the `faults`, each a sentence; none if all is right."""

    name: str
    checked: str
    faults: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """For a terminal."""
        if not self.faults:
            return f"ok     {self.name:<12} {self.checked}"
        more = f"; and {len(self.faults) - SHOWN} more" if len(self.faults) > SHOWN else ""
        return f"FAILED {self.name:<12} {'; '.join(self.faults[:SHOWN])}{more}"


class Fate(NamedTuple):
    """What the audit keeps of an episode; `version` is that of its group's admission."""

    ordinal: int
    sample: int
    outcome: EpisodeOutcome
    version: int
    update: int | None
    left_out: bool


def audit_run(run: StoredRun, recipes: Recipes) -> Iterator[AuditCheck]:
    """Iterate over the checks of a run, each as soon as it is done; a kind without episodes has three. Raises
    `UserError` where nothing is recorded, and `DataError` for records that cannot be read."""
    reported = [int(row["update"] or 0) for row in run.rows]
    ordered = reported == list(range(1, len(reported) + 1))
    faults = () if ordered else (f"the updates of metrics.jsonl are not 1 to {len(reported)}",)
    yield AuditCheck(name="updates", checked=f"{len(reported)} in order", faults=faults)
    found = (yield from audit_episodes(run, recipes)) if recipes[-1][1].kind == "rl" else {}
    yield summary_again(run, found)
    yield checkpoints_are_the_runs(run.folder, run)


def audit_episodes(run: StoredRun, recipes: Recipes) -> Generator[AuditCheck, None, dict[str, Any]]:
    """Iterate over the checks of a run of kind `rl`; return what its records give for the summary."""
    folder = run.folder
    if not parts_in(folder.episodes):
        raise UserError(f"{folder.path} has no recorded episodes")
    yield parts_are_there(folder)
    fates, faults, tokens, texts = list[Fate](), list[str](), 0, texts_of(folder)
    for part in whole_parts(folder.episodes):
        asked: Asked = {}
        for one in read_episodes(part):
            if one.outcome is EpisodeOutcome.SECOND_USE:
                continue
            recipe = recipe_at(recipes, one.update or one.admitted_version + 1)
            faults += (f"{part.name}: {fault}" for fault in faults_of_episode(one, recipe, texts, asked))
            tokens += one.sampled_tokens or 0
            if one.outcome is not EpisodeOutcome.BASELINE:
                left = one.failure_kind == LEFT_OUT
                fates.append(Fate(one.ordinal, one.sample, one.outcome, one.admitted_version, one.update, left))
    yield AuditCheck(name="tokens", checked=f"{tokens:,} sampled tokens", faults=tuple(faults))
    yield one_fate_each(fates, run, recipes)
    yield from updates_again(folder, run, recipes)
    evaluations, wrong = evaluations_of(folder, recipes)
    yield evaluations_again(run, recipes, evaluations, wrong)
    return played(fates, run, evaluations.get(0))


def recipe_at(recipes: Recipes, update: int) -> Recipe:
    """Return the recipe that made an update."""
    return next(recipe for last, recipe in recipes if update <= last)


def parts_are_there(folder: RunFolder) -> AuditCheck:
    """Every part up to the last, and up to those that the newest checkpoint counts, is there and whole."""
    faults, numbers = [], []
    for name in (folder.episodes, folder.evaluations):
        last = max(map(part_number, parts_in(name)), default=0)
        for path in checkpoints(folder.checkpoints):
            with suppress(CheckpointError):  # the check of the checkpoints reports it
                last = max(last, read_trainer_state(path).parts.get(name.name, 0))
        faults += lost_parts(name, last)
        numbers.append(f"{last} of {name.name}")
    return AuditCheck(name="parts", checked=", ".join(numbers), faults=tuple(faults))


def whole_parts(folder: Path) -> list[Path]:
    """Return the readable parts of a folder; the check of the parts reports the others."""
    return [part for part in parts_in(folder) if damage(part) is None]


def one_fate_each(fates: Sequence[Fate], run: StoredRun, recipes: Recipes) -> AuditCheck:
    """Every ordinal of the run has a group, every sample of it one fate, and the trained ones alone an update."""
    faults, groups = list[str](), defaultdict[int, list[Fate]](list)
    for fate in fates:
        groups[fate.ordinal].append(fate)
        if (fate.outcome is EpisodeOutcome.TRAINED) != (fate.update is not None):
            faults.append(f"ordinal {fate.ordinal} sample {fate.sample} is {fate.outcome} in update {fate.update}")
        if fate.left_out and recipe_at(recipes, fate.version + 1).trainer.kl.stop is None:
            faults.append(f"ordinal {fate.ordinal} sample {fate.sample} is left out, and trainer.kl.stop is not set")
    if run.summary is not None:
        missing = sorted(set(range(max(groups, default=-1) + 1)) - groups.keys())
        faults += (f"ordinal {ordinal} has no fate" for ordinal in missing)
    for ordinal, own in groups.items():
        samples, size = sorted(fate.sample for fate in own), recipe_at(recipes, own[0].version + 1).trainer.group_size
        if samples != list(range(len(own))) or len(own) % size:
            faults.append(f"ordinal {ordinal} has fates of samples {samples}, in groups of {size}")
    return AuditCheck(
        name="fates", checked=f"{len(fates):,} samples of {len(groups):,} groups have one each", faults=tuple(faults)
    )


def updates_again(folder: RunFolder, run: StoredRun, recipes: Recipes) -> Iterator[AuditCheck]:
    """Compute metrics, second uses and advantages of every update again, from the records of its part."""
    rows = {int(row["update"] or 0): row for row in run.rows}
    wrong, uses, off = list[str](), list[str](), list[str]()
    counted, replay, reread = Counter[str](), GroupReplay(ReplayConfig()), images_again(folder, recipes)
    for part in whole_parts(folder.episodes):
        records = [*read_episodes(part)]
        updates = {one.update for one in records if one.outcome in LEARNT and one.update}
        for update in sorted(one for one in updates if one in rows or not run.writing):
            recipe = recipe_at(recipes, update)
            learnt = [one for one in records if one.outcome in LEARNT and one.update == update]
            used = {one.ordinal for one in learnt if one.outcome is EpisodeOutcome.SECOND_USE}
            own = {one.ordinal for one in records if one.update == update or one.failure_kind == LEFT_OUT} - used
            try:
                groups = [*map(reread, groups_of([one for one in records if one.ordinal in own], part))]
                if not any(group.trainable for group in groups):
                    raise DataError(f"{part} has no trained episodes of update {update}")
            except DataError as error:
                wrong.append(str(error))
                uses += [f"update {update} cannot be computed again"] if used else []
                continue
            replay = GroupReplay(recipe.trainer.replay, replay.held)
            again = replay.second_uses(groups, update)
            samples = {(one.ticket.ordinal, index) for one in again for index, _, _ in one.trainable}
            seen = {(one.ordinal, one.sample) for one in learnt if one.ordinal in used}
            if seen - samples or (samples - seen and recipe.trainer.kl.stop is None):
                uses.append(f"update {update} used groups {sorted(used)} again, of which the rewards decide otherwise")
            found = metrics_again([*groups, *again], learnt, recipe, update)
            said = {"replay/groups": 0.0, **rows.pop(update, {})}
            wrong += (f"update {update}: {fault}" for fault in differences(said, found))
            advantages = advantages_again([*groups, *again], recipe)
            off += (fault for one in learnt for fault in wrong_advantages(one, advantages))
            counted.update(second=len(again), advantages=len(advantages))
    wrong += (f"update {update} has no records" for update, row in rows.items() if row.get("samples/trained"))
    yield AuditCheck(name="metrics", checked="what the records of every update give", faults=tuple(wrong))
    yield AuditCheck(name="second uses", checked=f"{counted['second']:,} groups, each once", faults=tuple(uses))
    yield AuditCheck(name="advantages", checked=f"{counted['advantages']:,} follow from rewards", faults=tuple(off))


def images_again(folder: RunFolder, recipes: Recipes) -> Callable[[Group], Group]:
    """Return the function that reads the images of a group, and processes them again where the run has a checkpoint: it
    raises `DataError` for one that is lost, or has other tokens."""
    features_of = None
    if recipes[-1][1].model.tower:
        with suppress(CheckpointError):  # the check of the checkpoints reports it
            trust = recipes[-1][1].model.trust_remote_code
            features_of = ImageReader(model_folder(folder.path), trust_remote_code=trust).features
    return partial(with_features, folder=folder.path / IMAGES, features_of=features_of)


def wrong_advantages(record: EpisodeRecord, expected: Advantages) -> Iterator[str]:
    """Report where the advantages of a record are not the expected ones; second uses have only their mean."""
    own = expected.get((record.ordinal, record.sample))
    if own is None or not len(own):
        return
    acted = None if record.advantages is None else record.advantages[np.isfinite(record.advantages)]
    said = np.full(len(own), record.advantage if record.advantage is not None else np.nan) if acted is None else acted
    if record.outcome is EpisodeOutcome.SECOND_USE:
        said, own = said[:1], own.mean(keepdims=True)
    if len(said) != len(own) or not np.allclose(said, own, rtol=ROUNDED, atol=ROUNDED):
        named = f"ordinal {record.ordinal} sample {record.sample}"
        yield f"{named} has the advantage {record.advantage}, and rewards give {own.mean():g}"


def evaluations_of(folder: RunFolder, recipes: Recipes) -> tuple[dict[int, Evaluation], list[str]]:
    """Return every recorded evaluation by its version, and what is wrong with their episodes."""
    found, faults, texts = dict[int, Evaluation](), list[str](), texts_of(folder)
    asked: Asked = {}
    reread = images_again(folder, recipes)
    for part in whole_parts(folder.evaluations):
        records = [*read_episodes(part)]
        for version in sorted({one.admitted_version for one in records}):
            recipe = recipe_at(recipes, version)
            own = [one for one in records if one.admitted_version == version]
            faults += (f"{part.name}: {fault}" for one in own for fault in faults_of_episode(one, recipe, texts, asked))
            try:
                found[version] = evaluation_again(own, recipe, part, reread)
            except DataError as error:
                faults.append(str(error))
    return found, faults


def evaluations_again(
    run: StoredRun, recipes: Recipes, found: Mapping[int, Evaluation], faults: Sequence[str]
) -> AuditCheck:
    """Every evaluation that the metrics hold is that of its recorded episodes, and none is missing."""
    ended = run.summary is not None and str(run.summary.get("outcome")).startswith(FINISHED)
    wrong, last = [*faults], int(run.rows[-1]["update"] or 0) if run.rows else 0
    for row in ({"update": 0}, *run.rows):
        update = int(row["update"] or 0)
        recipe = recipe_at(recipes, update)
        expected = ended if update == last else due(update, recipe.trainer.eval_every) or not update
        if update in found:
            wrong += (f"after update {update} {one}" for one in differences(row, found[update].metrics) if update)
        elif "eval/reward" in row or (expected and recipe.data.eval_sets):
            wrong.append(f"the evaluation after update {update} has no episodes")
    return AuditCheck(name="evaluations", checked=f"{len(found)} by their episodes", faults=tuple(wrong))


def summary_again(run: StoredRun, found: Mapping[str, Any]) -> AuditCheck:
    """Check that the summary says what the metrics and the records (`found`) give."""
    if run.summary is None:
        return AuditCheck(name="summary", checked="none: the run has no summary")
    said, updates, outcome = run.summary, len(run.rows), str(run.summary.get("outcome"))
    row = run.rows[-1] if run.rows and said.get("updates") == updates else {}
    ends = {
        f"evaluations.{name}.end.{key.rpartition('/')[2]}": value
        for name in said.get("evaluations") or {}
        for key, value in row.items()
        if key.startswith(f"eval/{name}/")
    }
    found = {"name": run.name, "eval_reward_end": row.get("eval/reward"), **ends, **found}
    faults = differences(dict(flatten(said)), found)
    done = updates == run.updates and ("eval/reward" in row or not said.get("eval_problems"))
    if (outcome == FINISHED and updates != run.updates) or (done and not outcome.startswith(FINISHED)):
        faults.append(f"the outcome is {outcome!r} after {updates} of {run.updates} updates")
    between = not outcome.startswith((FINISHED, SAVED))  # it may have failed before the report of its last update
    if said.get("updates") not in (updates, updates + between):
        faults.append(f"updates is {said.get('updates')}, the metrics have {updates}")
    return AuditCheck(name="summary", checked=f"{len(found)} values", faults=tuple(faults))


def played(fates: Sequence[Fate], run: StoredRun, start: Evaluation | None) -> dict[str, Any]:
    """Return what the records give for the summary. A run that failed between two updates had not counted its last
    groups."""
    outcomes, groups = Counter(fate.outcome for fate in fates), defaultdict[int, set[str]](set)
    for fate in fates:
        groups[fate.ordinal].add("trained" if fate.left_out or fate.update else fate.outcome.value)
    order = ("trained", "filtered", "in_flight", "failed")
    by_fate = Counter(next((one for one in order if one in own), "failed") for own in groups.values())
    exact = str((run.summary or {}).get("outcome")).startswith((FINISHED, SAVED))
    counts = {f"sample_counts.{one.value}": outcomes[one] for one in EpisodeOutcome if one not in NEVER_ADMITTED}
    counts |= {f"group_counts.{one}": by_fate[one] for one in order if exact}
    counts |= {"sample_counts.admitted": len(fates), "group_counts.admitted": len(groups)}
    totals = {"samples": "samples/trained", "second_uses": "replay/groups"}
    counts |= {name: sum(int(row.get(metric) or 0) for row in run.rows) for name, metric in totals.items()}
    counts["max_staleness"] = max((int(row.get("staleness/max") or 0) for row in run.rows), default=0)
    if start is None:
        return counts
    sets = {f"evaluations.{one.name}.start.{name}": value for one in start.sets for name, value in one.metrics.items()}
    sets |= {f"evaluations.{one.name}.problems": one.problems for one in start.sets}
    first = {"eval_problems": start.problems, "eval_distinct_answers": start.distinct_answers}
    return {**counts, **sets, **first, "eval_reward_start": start.reward}


def differences(said: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each value that was found and not said."""
    return [
        f"{name} is {said.get(name)}, its records give {value}"
        for name, value in found.items()
        if name not in said or not _same(said[name], value)
    ]


def checkpoints_are_the_runs(folder: RunFolder, run: StoredRun) -> AuditCheck:
    """Every checkpoint is whole, has the content that was written, and the metrics of this run."""
    faults, found = [], checkpoints(folder.checkpoints)
    metrics = {row["update"]: row for row in run.rows}
    for path in found:
        try:
            manifest = read_checkpoint(path)
            verify(path, manifest)
            state = read_trainer_state(path)
        except CheckpointError as error:
            faults.append(str(error))
            continue
        row = metrics.get(manifest.version, {})
        other = [
            name for name, value in state.metrics.items() if row.get(name) is not None and not _same(row[name], value)
        ]
        if other or path.name != f"version-{manifest.version:06}" or not state.groups.balanced:
            faults.append(f"{path.name} is of another run: {', '.join(other[:SHOWN]) or f'version {manifest.version}'}")
    return AuditCheck(name="checkpoints", checked=f"{len(found)} are whole, and of this run", faults=tuple(faults))


def _same(said: object, value: object) -> bool:
    if isinstance(said, int | float) and isinstance(value, int | float):
        return isclose(said, value, rel_tol=ROUNDED, abs_tol=MICRO)
    return said == value or (said is None and isinstance(value, float) and not isfinite(value))
