"""Checks a run by what it recorded: the fate of every sample, its tokens, rewards and versions, the books, and the
checkpoints. It reads the records themselves; what the run says of itself in metrics and summary is held against them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isclose
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rlhf.controller.trainer_state import read_trainer_state
from rlhf.errors import CheckpointError, UserError
from rlhf.recipe.schema import Recipe
from rlhf.runs.episode_parts import NEVER_ADMITTED, damage, lost_parts, part_number, parts_in, read_episodes
from rlhf.runs.folder import RunFolder
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord
from rlhf.runs.stored_run import MetricRow, StoredRun
from rlhf.trainer.advantages import best_of_group, group_relative, leave_one_out, length_weighted
from rlhf.trainer.algorithms.episodes import overlong_penalty_of
from rlhf.trainer.arrays import Doubles
from rlhf.trainer.checkpoint import checkpoints, read_checkpoint, verify
from rlhf.types import TokenKind

SHOWN = 3
"""Faults that a line tells."""
EXACT, ROUNDED = 1e-9, 1e-5
"""Relative differences that float64 and float32 explain."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What the audit keeps of an episode. `versions` are the oldest and the newest of its sampled tokens, and their
    sum."""

    part: int
    ordinal: int
    sample: int
    role: str | None
    outcome: EpisodeOutcome
    admitted_version: int
    update: int | None
    reward: float | None
    advantage: float | None
    tokens: int
    versions: tuple[int, int, int] | None

    @property
    def named(self) -> str:
        return f"ordinal {self.ordinal} sample {self.sample}"


def audit_run(run: StoredRun, recipe: Recipe) -> Iterator[AuditCheck]:
    """Iterate over the checks of a run of kind `rl`, each as soon as it is done. Raises `UserError` where nothing is
    recorded, and `DataError` for records that cannot be read."""
    folder = run.folder
    if not parts_in(folder.episodes):
        raise UserError(f"{folder.path} has no recorded episodes")
    yield parts_are_there(folder)
    fates: list[Fate] = []
    again: list[Fate] = []
    faults: list[str] = []
    decode = decoder(folder)
    for part in whole_parts(folder.episodes):
        for record in read_episodes(part):
            if record.outcome is EpisodeOutcome.SECOND_USE:
                again.append(fate_of(record, part_number(part)))
            elif record.outcome is not EpisodeOutcome.BASELINE:
                faults += (f"part {part_number(part)}: {fault}" for fault in faults_of_tokens(record, decode))
                fates.append(fate_of(record, part_number(part)))
    yield AuditCheck(
        name="tokens", checked=f"{sum(fate.tokens for fate in fates):,} sampled tokens", faults=tuple(faults)
    )
    yield one_fate_each(fates, run)
    yield in_one_update(fates, run, recipe)
    if again or recipe.trainer.replay.groups:
        yield second_uses_follow(again, fates, run, recipe)
    yield versions_in_bound(fates, run, recipe)
    yield metrics_of_records(fates, run.rows)
    yield advantages_again(fates, recipe)
    yield books_balance(fates, run)
    yield evaluations_again(folder, run.rows)
    yield checkpoints_are_the_runs(folder, run)


def parts_are_there(folder: RunFolder) -> AuditCheck:
    """Every part up to the last, and up to those that the newest checkpoint counts, is there and whole."""
    faults, numbers = [], []
    for name in (folder.episodes, folder.evaluations):
        counted = [_parts_counted(path, name.name) for path in checkpoints(folder.checkpoints)]
        last = max([*map(part_number, parts_in(name)), *counted], default=0)
        faults += lost_parts(name, last)
        numbers.append(f"{last} of {name.name}")
    return AuditCheck(name="parts", checked=", ".join(numbers), faults=tuple(faults))


def whole_parts(folder: Path) -> list[Path]:
    """Return the parts of a folder that can be read; the check of the parts tells of the others."""
    return [part for part in parts_in(folder) if damage(part) is None]


def _parts_counted(checkpoint: Path, name: str) -> int:
    try:
        return read_trainer_state(checkpoint).parts.get(name, 0)
    except CheckpointError:
        return 0  # the check of the checkpoints tells it


def decoder(folder: RunFolder) -> Callable[[Sequence[int]], str] | None:
    """Return what makes text of tokens, by the run's tokenizer; None without one."""
    file = folder.tokenizer / "tokenizer.json"
    if not file.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(file))
    return lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True))


def fate_of(record: EpisodeRecord, part: int) -> Fate:
    acted = None if record.kinds is None else record.kinds == TokenKind.ACTION
    versions = None
    if acted is not None and acted.any() and record.versions is not None:
        sampled = record.versions[acted]
        versions = int(sampled.min()), int(sampled.max()), int(sampled.sum())
    return Fate(
        part=part,
        ordinal=record.ordinal,
        sample=record.sample,
        role=record.role,
        outcome=EpisodeOutcome(record.outcome),
        admitted_version=record.admitted_version,
        update=record.update,
        reward=record.reward,
        advantage=record.advantage,
        tokens=0 if acted is None else int(acted.sum()),
        versions=versions,
    )


def faults_of_tokens(record: EpisodeRecord, decode: Callable[[Sequence[int]], str] | None) -> Iterator[str]:
    """Tell what is wrong with the tokens of one episode: their number, which of them have a log-prob and a version, and
    whether the last reply is their text."""
    named = f"ordinal {record.ordinal} sample {record.sample}"
    if record.token_ids is None or record.kinds is None:
        if record.outcome is EpisodeOutcome.TRAINED:
            yield f"{named} was trained and has no tokens"
        return
    length, acted = len(record.token_ids), record.kinds == TokenKind.ACTION
    columns = {
        "log-probs": record.engine_logprobs, "versions": record.versions,
        "log-probs of the learner": record.learner_logprobs,
    }  # fmt: skip
    there = {name: column for name, column in columns.items() if column is not None}
    wrong = [name for name, column in there.items() if len(column) != length]
    if wrong or len(acted) != length or sum(record.segment_lengths or ()) != length:
        yield f"{named} has {length} tokens and other numbers of {', '.join(wrong) or 'kinds, or in its segments'}"
        return
    if record.sampled_tokens != acted.sum():
        yield f"{named} says {record.sampled_tokens} sampled tokens and has {acted.sum()}"
    for name, column in there.items():
        known = column >= 0 if name == "versions" else np.isfinite(column)
        if (known != acted).any():
            yield f"{named} has {name} at other tokens than the sampled"
    if decode and record.response is not None and not record.cut_replies:
        last = decode(record.token_ids[_last_reply(record, acted)].tolist())
        if not record.response.rstrip().endswith(last.strip()):
            yield f"{named} has tokens of another text than its reply"


def _last_reply(record: EpisodeRecord, acted: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the places of the sampled tokens of the last turn."""
    if not record.turns:
        return np.flatnonzero(acted)
    turn = record.turns[-1]
    before = sum((record.segment_lengths or [])[: turn["segment"]])
    start, stop = before + turn["start"], before + turn["stop"]
    places: NDArray[np.intp] = start + np.flatnonzero(acted[start:stop])
    return places


def one_fate_each(fates: Sequence[Fate], run: StoredRun) -> AuditCheck:
    """Every ordinal of the run has a group, and every sample of it one fate."""
    seen: dict[tuple[int, int], Fate] = {}
    faults = []
    for fate in fates:
        other = seen.setdefault((fate.ordinal, fate.sample), fate)
        if other is not fate:
            faults.append(f"{fate.named} has two fates (parts {other.part} and {fate.part})")
    samples: dict[int, set[int]] = defaultdict(set)
    for ordinal, sample in seen:
        samples[ordinal].add(sample)
    ended = run.summary is not None
    missing = sorted(set(range(max(samples, default=-1) + 1)) - samples.keys()) if ended else []
    faults += [f"ordinal {ordinal} has no fate" for ordinal in missing]
    usual = Counter(map(len, samples.values())).most_common(1)
    for ordinal, own in samples.items():
        if own != set(range(max(own) + 1)):
            faults.append(f"ordinal {ordinal} lacks sample {min(set(range(max(own) + 1)) - own)}")
        elif usual and len(own) < usual[0][0]:
            faults.append(f"ordinal {ordinal} has {len(own)} samples, other groups {usual[0][0]}")
    return AuditCheck(
        name="fates", checked=f"{len(seen):,} samples of {len(samples):,} groups have one each", faults=tuple(faults)
    )


def in_one_update(fates: Iterable[Fate], run: StoredRun, recipe: Recipe) -> AuditCheck:
    """Trained samples have an update that the metrics know, with its groups; no other sample has one, and the samples
    of a group have the same one."""
    faults: list[str] = []
    groups: dict[int, set[int]] = defaultdict(set)
    parts: dict[int, int] = {}
    for fate in fates:
        if (fate.outcome is EpisodeOutcome.TRAINED) != (fate.update is not None):
            faults.append(f"{fate.named} is {fate.outcome} in update {fate.update}")
        elif fate.update is not None:
            groups[fate.update].add(fate.ordinal)
            if parts.setdefault(fate.update, fate.part) != fate.part:
                faults.append(f"{fate.named} of update {fate.update} is in part {fate.part}, others are not")
    owners: dict[int, int] = {}
    for update, ordinals in groups.items():
        for ordinal in ordinals:
            if owners.setdefault(ordinal, update) != update:
                faults.append(f"ordinal {ordinal} was trained in updates {owners[ordinal]} and {update}")
        if len(ordinals) > recipe.trainer.groups_per_update:
            faults.append(f"update {update} trained {len(ordinals)} groups of {recipe.trainer.groups_per_update}")
    reported = [int(row["update"] or 0) for row in run.rows]
    if reported != list(range(1, len(reported) + 1)):
        faults.append(f"the updates of metrics.jsonl are not 1 to {len(reported)}")
    faults += [f"update {update} has no metrics" for update in sorted(groups.keys() - set(reported)) if not run.writing]
    return AuditCheck(name="updates", checked=f"{len(reported)} updates, a group in one of them", faults=tuple(faults))


def second_uses_follow(again: Iterable[Fate], fates: Iterable[Fate], run: StoredRun, recipe: Recipe) -> AuditCheck:
    """Check that second uses are of whole trained groups whose rewards differ, each in one later update within the age
    limit, and that metrics and summary count them."""
    replay, faults = recipe.trainer.replay, []
    first: dict[int, list[Fate]] = defaultdict(list)
    second: dict[int, list[Fate]] = defaultdict(list)
    for fate in chain(fates, again):
        if fate.update is not None:
            (second if fate.outcome is EpisodeOutcome.SECOND_USE else first)[fate.ordinal].append(fate)
    for ordinal, own in second.items():
        before, updates = first[ordinal], sorted({fate.update or 0 for fate in own})
        if sorted(fate.sample for fate in own) != sorted(fate.sample for fate in before):
            faults.append(f"ordinal {ordinal} has {len(before)} trained samples and {len(own)} second uses")
        elif len({fate.reward for fate in before}) == 1:
            faults.append(f"ordinal {ordinal} has a second use, and its rewards are equal")
        elif len(updates) > 1 or not 0 < updates[0] - (before[0].update or 0) <= replay.max_age:
            faults.append(f"ordinal {ordinal} of update {before[0].update} has its second use in updates {updates}")
    used = Counter(own[0].update or 0 for own in second.values())
    faults += [
        f"update {one} used {n} groups again, of {replay.groups}" for one, n in used.items() if n > replay.groups
    ]
    for row in run.rows:
        update, said = int(row["update"] or 0), row.get("replay/groups") or 0
        if said != used[update]:
            faults.append(f"update {update}: replay/groups is {said:g}, its records give {used[update]}")
    told = (run.summary or {}).get("second_uses", len(second))
    if told != len(second):
        faults.append(f"the summary says {told} second uses, the records {len(second)}")
    return AuditCheck(name="second uses", checked=f"{len(second):,} groups, each once", faults=tuple(faults))


def versions_in_bound(fates: Iterable[Fate], run: StoredRun, recipe: Recipe) -> AuditCheck:
    """Trained tokens were sampled by the version that admitted their group or a later one, and within the bound."""
    bound, largest, faults = recipe.trainer.max_staleness, 0, []
    for fate in fates:
        if fate.update is None or fate.versions is None:
            continue
        oldest, newest, _ = fate.versions
        stale = fate.update - 1 - oldest
        largest = max(largest, stale)
        if stale > bound or newest >= fate.update or oldest < fate.admitted_version:
            faults.append(f"{fate.named} of update {fate.update} has tokens of versions {oldest} to {newest}")
    said = (run.summary or {}).get("max_staleness", largest)
    if said != largest and not faults:
        faults.append(f"the summary says a staleness of {said}, the tokens {largest}")
    return AuditCheck(name="versions", checked=f"staleness up to {largest} of {bound}", faults=tuple(faults))


def metrics_of_records(fates: Iterable[Fate], rows: Sequence[MetricRow]) -> AuditCheck:
    """Check that the metrics of every update are those of its records: samples, tokens, mean reward, mean staleness."""
    trained: dict[int, list[Fate]] = defaultdict(list)
    for fate in fates:
        if fate.update is not None:
            trained[fate.update].append(fate)
    faults = []
    for row in rows:
        update = int(row["update"] or 0)
        for name, found in _metrics(trained.get(update, []), update).items():
            said = row.get(name)
            if said is not None and not isclose(said, found, rel_tol=ROUNDED, abs_tol=EXACT):
                faults.append(f"update {update}: {name} is {said:g}, its records give {found:g}")
    return AuditCheck(name="metrics", checked="rewards, tokens and staleness of every update", faults=tuple(faults))


def _metrics(fates: Sequence[Fate], update: int) -> Mapping[str, float]:
    tokens = sum(fate.tokens for fate in fates)
    counts = {"samples/trained": float(len(fates)), "tokens/trained": float(tokens)}
    if not tokens:
        return counts
    rewards = [fate.reward for fate in fates if fate.reward is not None]
    sampled = sum(fate.versions[2] for fate in fates if fate.versions)
    return counts | {"reward/mean": float(np.mean(rewards)), "staleness/mean": update - 1 - sampled / tokens}


def advantages_again(fates: Iterable[Fate], recipe: Recipe) -> AuditCheck:
    """Advantages are what the recorded rewards of their group give, where these alone decide."""
    config = recipe.trainer.advantage
    within: Mapping[str, Callable[[list[float], list[float]], Doubles]] = {
        "group_relative": lambda r, _: group_relative(r, normalize_by_std=config.normalize_by_std),
        "leave_one_out": lambda r, _: leave_one_out(r),
        "length_weighted": length_weighted,
        "best_of_group": lambda r, _: best_of_group(r, normalize_by_std=config.normalize_by_std),
    }
    estimate = within.get(config.estimator)
    priced = recipe.trainer.kl.coefficient > 0 and recipe.trainer.kl.place == "reward"
    if estimate is None or config.whiten or priced or recipe.trainer.shuffle_rewards:
        return AuditCheck(name="advantages", checked=f"not computed again: {config.estimator} needs more than rewards")
    groups: dict[tuple[int, str | None], list[Fate]] = defaultdict(list)
    for fate in fates:
        if fate.update is not None and fate.reward is not None and fate.tokens:
            groups[fate.ordinal, fate.role].append(fate)
    faults = []
    for members in groups.values():
        lengths = np.array([fate.tokens for fate in members])
        penalties = overlong_penalty_of(lengths, recipe.trainer.overlong, recipe.sampling.max_tokens)
        rewards = [(fate.reward or 0.0) + penalty for fate, penalty in zip(members, penalties.tolist(), strict=True)]
        expected = estimate(rewards, lengths.astype(float).tolist())
        for fate, value in zip(members, expected, strict=True):
            if fate.advantage is None or not isclose(fate.advantage, value, rel_tol=ROUNDED, abs_tol=ROUNDED):
                faults.append(f"{fate.named} has the advantage {fate.advantage}, its group's rewards give {value:g}")
    return AuditCheck(name="advantages", checked=f"{len(groups):,} groups by {config.estimator}", faults=tuple(faults))


def books_balance(fates: Sequence[Fate], run: StoredRun) -> AuditCheck:
    """Check that the counts of the summary are those of the records."""
    if run.summary is None:
        return AuditCheck(name="books", checked="none: the run has no summary")
    found = Counter(fate.outcome.value for fate in fates)
    counts = {outcome.value: found[outcome.value] for outcome in EpisodeOutcome if outcome not in NEVER_ADMITTED}
    ordinals = {"admitted": len({f.ordinal for f in fates}), "trained": len({f.ordinal for f in fates if f.update})}
    faults = []
    for name, own in (("sample_counts", {"admitted": len(fates)} | counts), ("group_counts", ordinals)):
        said = run.summary.get(name, {})
        faults += [
            f"{name} say {said.get(key)} {key}, the records {value}"
            for key, value in own.items()
            if said.get(key) != value
        ]
    return AuditCheck(
        name="books", checked=", ".join(f"{value:,} {key}" for key, value in counts.items()), faults=tuple(faults)
    )


def evaluations_again(folder: RunFolder, rows: Sequence[MetricRow]) -> AuditCheck:
    """Check that the reward of every evaluation that the metrics hold is the mean of its recorded episodes."""
    rewards: dict[tuple[int, str], list[float]] = defaultdict(list)
    for record in chain.from_iterable(map(read_episodes, whole_parts(folder.evaluations))):
        if record.reward is not None and record.sample == 0:
            rewards[record.admitted_version, record.evaluation_set or ""].append(record.reward)
    faults = []
    for row in rows:
        for (version, name), values in rewards.items():
            said = row.get(f"eval/{name}/avg@1")
            found = float(np.mean(values))
            if version == row["update"] and said is not None and not isclose(said, found, rel_tol=ROUNDED):
                faults.append(f"after update {version} {name} is {said:g}, its records give {found:g}")
    return AuditCheck(name="evaluations", checked=f"{len(rewards)} of one reply a problem", faults=tuple(faults))


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
        other = [name for name, value in state.metrics.items() if name in row and not _same(row[name], value)]
        if other or path.name != f"version-{manifest.version:06}" or not state.groups.balanced:
            faults.append(f"{path.name} is of another run: {', '.join(other[:SHOWN]) or f'version {manifest.version}'}")
    return AuditCheck(name="checkpoints", checked=f"{len(found)} are whole, and of this run", faults=tuple(faults))


def _same(said: float | None, value: float) -> bool:
    return said is None or isclose(said, value, rel_tol=EXACT)
