"""Read what a recorded run played, and how long each part took."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.engines.router import Router
from rlhf.errors import UserError
from rlhf.recipe.simulation.clock import Cores, Flow, SimulatedLoop
from rlhf.recipe.simulation.run import Durations, EpisodeWork, GroupWork, Sampled, SimulatedEngine, play_episode
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import read_jsonl
from rlhf.tracing import Span

PLAYED = """
SELECT ordinal, update, outcome = 'filtered', coalesce(engine, ''), coalesce(generate_seconds, 0),
    coalesce(environment_seconds, 0), list_sum(segment_lengths) - sampled_tokens, sampled_tokens,
    greatest(coalesce(len(turns), 1), 1)
FROM episodes WHERE outcome IN ('trained', 'filtered', 'unscored') AND sampled_tokens > 0 ORDER BY ordinal, sample
"""
LEAST_UPDATES = 3
FITTED = 128
"""Groups, the last, from which the seconds of a step are found, as if all had taken as long."""
GUESS = (1e-2, 1e-4, 2e-5)
"""Seconds of a step, of a sequence in it, and of a token of a prompt, in whose proportion the search begins."""
ROUNDS, NUDGE, DAMPING = 5, 0.05, 1e-2
RESTART_SECONDS = 60.0
"""Of an engine, where the run has not recorded its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTimes:
    """What a run played, its durations, and its mean update without evaluations and checkpoints."""

    groups: Sequence[GroupWork]
    durations: Durations
    update_seconds: float


def recorded_times(folder: RunFolder, *, places: int) -> RecordedTimes:
    """Read a run whose engines had so many places. Its first update, which warms up, does not count.

    Raises `UserError` for a run with too few updates, and `DataError` for damaged records.
    """
    spans: dict[str, list[Span]] = defaultdict(list)
    if not folder.spans.is_file():
        raise UserError(f"{folder.path} has no recorded times: it has no spans.jsonl")
    for row in read_jsonl(folder.spans):
        span = Span(name=row.pop("name"), start=row.pop("start"), seconds=row.pop("seconds"), attributes=row)
        spans[span.name].append(span)
    synced = sorted(span.start + span.seconds for span in spans["weight_sync"])[1:]
    if len(synced) < LEAST_UPDATES:
        raise UserError(f"{folder.path} has {len(synced)} updates; to simulate, record {LEAST_UPDATES}")
    updates = len(synced) - 1
    groups = _groups(folder, {one.attributes["ordinal"]: one for one in spans["generate"] if one.start >= synced[0]})
    train = {int(span.attributes["version"] or 0) + 1: span.seconds for span in spans["train"]}
    trained = [group for group in groups if group.update in train]

    def spent(*names: str) -> float:
        within = (span.seconds for name in names for span in spans[name] if synced[0] <= span.start < synced[-1])
        return sum(within) / updates

    update_seconds = (synced[-1] - synced[0]) / updates - spent("evaluate", "save")
    durations = Durations(
        step=0.0, sequence=0.0, prompt_token=0.0, weight_sync=spent("weight_sync"),
        train_token=sum(train[update] for update in {group.update or 0 for group in trained})
        / sum(group.trained_tokens for group in trained),
        rest=max(update_seconds - spent("wait", "train", "weight_sync"), 0.0),
        restart=max((span.seconds for span in spans["start"]), default=RESTART_SECONDS),
    )  # fmt: skip
    found = fitted_steps(groups[-FITTED:], spans["weight_sync"], durations, places)
    slower = _mean_seconds(groups) / _mean_seconds(groups[-FITTED:])
    steps = {"step": slower * found.step, "sequence": slower * found.sequence}
    durations = replace(found, prompt_token=slower * found.prompt_token, **steps)
    return RecordedTimes(groups=groups, durations=durations, update_seconds=update_seconds)


def _mean_seconds(groups: Sequence[GroupWork]) -> float:
    return fmean(episode.seconds for group in groups for episode in group.episodes)


def _groups(folder: RunFolder, opened: Mapping[Any, Span]) -> list[GroupWork]:
    """Return these groups with the episodes that ended as they should."""
    from rlhf.runs.episode_query import open_episodes

    with closing(open_episodes(folder.episodes, print)) as episodes:
        rows = episodes.execute(PLAYED).fetchall()
    played = groupby((row for row in rows if row[0] in opened), key=lambda row: row[:3])
    return [_group(opened[ordinal], update, filtered, list(own)) for (ordinal, update, filtered), own in played]


def _group(span: Span, update: int | None, filtered: bool, rows: Sequence[tuple[Any, ...]]) -> GroupWork:
    episodes = tuple(
        EpisodeWork(
            prompt_tokens=prompt, tokens=tokens, turns=turns, environment_seconds=environment, engine=engine,
            seconds=seconds + environment,
        )
        for _, _, _, engine, seconds, environment, prompt, tokens, turns in rows
    )  # fmt: skip
    scoring = max(span.seconds - max(episode.seconds for episode in episodes), 0.0)
    return GroupWork(episodes=episodes, scoring_seconds=scoring, filtered=filtered, start=span.start, update=update)


def fitted_steps(groups: Sequence[GroupWork], syncs: Sequence[Span], durations: Durations, places: int) -> Durations:
    """Return the durations with the seconds of a step with which engines that are given these episodes as they were
    recorded need as long for each: least squares by Gauss and Newton over the logarithms of the seconds."""
    measured = np.array([episode.seconds for group in groups for episode in group.episodes])

    def at(logs: NDArray[np.float64]) -> Durations:
        step, sequence, prompt_token = np.exp(logs).tolist()
        return replace(durations, step=step, sequence=sequence, prompt_token=prompt_token)

    def missed(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        off: NDArray[np.float64] = np.array(replayed_seconds(groups, syncs, at(logs), places)) - measured
        return off

    logs, eye = np.log(GUESS), np.eye(len(GUESS))
    logs = best = logs + np.log(measured.sum() / (missed(logs) + measured).sum())
    least = inf
    for _ in range(ROUNDS):
        now = missed(logs)
        if (norm := float(np.linalg.norm(now))) < least:
            best, least = logs, norm
        slopes = np.stack([(missed(logs + NUDGE * one) - now) / NUDGE for one in eye], axis=1)
        damped = np.concatenate([slopes, eye * DAMPING * np.linalg.norm(measured)])
        logs = logs - np.clip(np.linalg.lstsq(damped, np.append(now, 0.0 * eye[0]), rcond=None)[0], -1, 1)
    return at(best)


def replayed_seconds(
    groups: Sequence[GroupWork], syncs: Sequence[Span], durations: Durations, places: int
) -> list[float]:
    """Return how long each episode takes in a simulated engine, if it begins when it began."""
    origin = min(group.start for group in groups)
    played = [(group.start - origin, work) for group in groups for work in group.episodes]

    async def play(router: Router, number: int, after: float, work: EpisodeWork) -> float:
        await asyncio.sleep(after)
        await play_episode(router, str(number), work)
        return asyncio.get_running_loop().time() - after

    async def sync(engine: SimulatedEngine, span: Span) -> None:
        await asyncio.sleep(span.start - origin)
        engine.pause()
        await asyncio.sleep(span.seconds)
        engine.resume(0)

    async def replayed() -> list[float]:
        cores, sampled = Cores(inf), defaultdict[str, Sampled](Sampled)
        names = {work.engine for _, work in played}
        engines = {name: SimulatedEngine(name, durations, places, Flow(cores, 1), sampled) for name in names}
        routers = {name: Router([engine]) for name, engine in engines.items()}
        later = [span for span in syncs if span.start >= origin]
        syncing = [asyncio.ensure_future(sync(engine, span)) for engine in engines.values() for span in later]
        found = await asyncio.gather(*(play(routers[one[1].engine], n, *one) for n, one in enumerate(played)))
        for task in syncing:
            task.cancel()
        return found

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(replayed())
