"""Read what a recorded run played, and how long each part took."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from math import inf
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import UserError
from rlhf.recipe.simulation.clock import Cores, SimulatedLoop
from rlhf.recipe.simulation.parts import SimulatedEngine, play_episode, sampled_tokens
from rlhf.recipe.simulation.workload import Durations, EpisodeWork, GroupWork, StepSeconds, Workload
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.tracing import Span

PLAYED = """
SELECT ordinal, coalesce(engine, ''), coalesce(generate_seconds, 0), outcome = 'filtered', update, sampled_tokens,
    coalesce(environment_seconds, 0), list_sum(segment_lengths) - sampled_tokens, greatest(coalesce(len(turns), 1), 1)
FROM episodes WHERE outcome IN ('trained', 'filtered', 'unscored') AND sampled_tokens > 0 ORDER BY ordinal, sample
"""
LEAST_UPDATES = 3
FITTED = 1024
"""Episodes from which the seconds of a step are found."""
RESTART_SECONDS = 60.0
"""Of an engine, where the run has not recorded its start."""
Spans = Mapping[str, Sequence[Span]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisode:
    """A recorded episode: it began at `start`, and generated for so many seconds, in which it may have waited for a
    place in its engine."""

    ordinal: int
    engine: str
    start: float
    generate_seconds: float
    filtered: bool
    update: int | None
    work: EpisodeWork

    @property
    def end(self) -> float:
        return self.start + self.generate_seconds + self.work.environment_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTimes:
    """A run's workload, and the seconds of its mean update without evaluations and checkpoints."""

    workload: Workload
    update_seconds: float


def recorded_times(folder: RunFolder, *, places: int, chunk: int) -> RecordedTimes:
    """Read a run whose engines had so many places, and read at most `chunk` tokens of prompts in a step. Its first
    update, which warms up, does not count.

    Raises `UserError` for a run with too few updates, and `DataError` for damaged records.
    """
    spans = read_spans(folder)
    synced = sorted(span.start + span.seconds for span in spans["weight_sync"])
    if len(synced) <= LEAST_UPDATES:
        raise UserError(f"{folder.path} has {max(len(synced) - 1, 0)} updates; to simulate, record {LEAST_UPDATES}")
    opened = {int(span.attributes["ordinal"] or 0): span for span in spans["generate"]}
    groups: dict[int, list[PlayedEpisode]] = defaultdict(list)
    for episode in played_episodes(folder, opened):
        if episode.start >= synced[1]:
            groups[episode.ordinal].append(episode)
    works = {ordinal: _group(played, opened[ordinal]) for ordinal, played in groups.items()}
    windows, spent = np.diff(synced[1:]), {name: _spent(spans[name], synced[1:]) for name in IN_AN_UPDATE}
    episodes = list(chain.from_iterable(groups.values()))
    durations = Durations(
        step=typical_steps(episodes, spans["weight_sync"], places, chunk),
        train_token=_train_token(spans, groups, works),
        weight_sync=fmean(spent["weight_sync"]),
        rest=max(fmean(windows - sum(spent.values())), 0.0),
        restart=max((span.seconds for span in spans["start"]), default=RESTART_SECONDS),
    )
    update_seconds = fmean(windows - spent["evaluate"] - spent["save"])
    workload = Workload(groups=list(works.values()), durations=durations)
    return RecordedTimes(workload=workload, update_seconds=update_seconds)


IN_AN_UPDATE = ("wait", "train", "weight_sync", "evaluate", "save")


def read_spans(folder: RunFolder) -> Spans:
    """Read the spans of a run by name. Raises `UserError` if it has none."""
    spans: dict[str, list[Span]] = defaultdict(list)
    if not folder.spans.is_file():
        raise UserError(f"{folder.path} has no recorded times: it has no spans.jsonl")
    for row in read_jsonl(folder.spans):
        name, start, seconds = row.pop("name"), row.pop("start"), row.pop("seconds")
        spans[name].append(Span(name=name, start=start, seconds=seconds, attributes=row))
    return spans


def played_episodes(folder: RunFolder, groups: Mapping[int, Span]) -> Iterator[PlayedEpisode]:
    """Iterate over the episodes of these groups that ended as they should."""
    from rlhf.runs.episode_query import open_episodes

    with closing(open_episodes(folder.episodes, print)) as episodes:
        rows = episodes.execute(PLAYED).fetchall()
    for ordinal, engine, seconds, filtered, update, tokens, environment, prompt, turns in rows:
        if ordinal in groups:
            work = EpisodeWork(prompt_tokens=prompt, tokens=tokens, turns=turns, environment_seconds=environment)
            yield PlayedEpisode(
                ordinal=ordinal, engine=engine, start=groups[ordinal].start, generate_seconds=seconds,
                filtered=filtered, update=update, work=work,
            )  # fmt: skip


def _group(played: Sequence[PlayedEpisode], span: Span) -> GroupWork:
    return GroupWork(
        episodes=tuple(episode.work for episode in played),
        scoring_seconds=max(span.start + span.seconds - max(episode.end for episode in played), 0.0),
        filtered=played[0].filtered,
    )


def _train_token(spans: Spans, groups: Mapping[int, Sequence[PlayedEpisode]], works: Mapping[int, GroupWork]) -> float:
    """Return the seconds of training a token."""
    seconds = {int(span.attributes["version"] or 0) + 1: span.seconds for span in spans["train"]}
    tokens: dict[int, int] = defaultdict(int)
    for ordinal, work in works.items():
        if (update := groups[ordinal][0].update) in seconds:
            tokens[update] += work.trained_tokens
    return sum(seconds[update] for update in tokens) / sum(tokens.values())


def _spent(spans: Sequence[Span], bounds: Sequence[float]) -> NDArray[np.float64]:
    """Return the seconds of spans, which follow one another, in each of the windows between the bounds."""
    at = np.asarray(bounds)[:, None]
    began = np.array([span.start for span in spans])
    before = np.clip(at - began, 0.0, np.array([span.seconds for span in spans])).sum(axis=1)
    spent: NDArray[np.float64] = np.diff(before)
    return spent


def typical_steps(episodes: Sequence[PlayedEpisode], syncs: Sequence[Span], places: int, chunk: int) -> StepSeconds:
    """Return the seconds of a step that the last episodes show, if these took as long as all on average."""
    last = episodes[-FITTED:]
    step = fitted_steps(last, syncs, places, chunk)
    slower = fmean(one.generate_seconds for one in episodes) / fmean(one.generate_seconds for one in last)
    return StepSeconds(
        fixed=slower * step.fixed,
        sequence=slower * step.sequence,
        prompt_token=slower * step.prompt_token,
        chunk=chunk,
    )


def fitted_steps(episodes: Sequence[PlayedEpisode], syncs: Sequence[Span], places: int, chunk: int) -> StepSeconds:
    """Return the seconds of a step with which engines that are given these episodes as they were recorded need as long
    for each: least squares by Gauss and Newton over the logarithms of the seconds."""
    took = [episode.generate_seconds + episode.work.environment_seconds for episode in episodes]
    measured: NDArray[np.float64] = np.array(took)

    def misses(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        fixed, sequence, prompt_token = np.exp(logs).tolist()
        step = StepSeconds(fixed=fixed, sequence=sequence, prompt_token=prompt_token, chunk=chunk)
        missed: NDArray[np.float64] = replayed_seconds(episodes, syncs, step, places) - measured
        return missed

    logs = np.log(GUESS)
    logs += np.log(measured.sum() / (measured + misses(logs)).sum())
    best = misses(logs)
    for _ in range(ROUNDS):
        slopes = np.stack([(misses(logs + NUDGE * one) - best) / NUDGE for one in np.eye(len(GUESS))], axis=1)
        damped = np.concatenate([slopes, np.eye(len(GUESS)) * DAMPING * np.linalg.norm(measured)])
        step = np.clip(np.linalg.lstsq(damped, np.concatenate([-best, np.zeros(len(GUESS))]), rcond=None)[0], -1, 1)
        for share in (1.0, 0.3, 0.1):
            if np.linalg.norm(found := misses(logs + share * step)) < np.linalg.norm(best):
                logs, best = logs + share * step, found
                break
    fixed, sequence, prompt_token = np.exp(logs).tolist()
    return StepSeconds(fixed=fixed, sequence=sequence, prompt_token=prompt_token, chunk=chunk)


GUESS = (1e-2, 1e-4, 2e-5)
"""Seconds of a step, of a sequence in it, and of a token of a prompt, in whose proportion the search begins."""
ROUNDS, NUDGE, DAMPING = 4, 0.05, 1e-2


def replayed_seconds(
    episodes: Sequence[PlayedEpisode], syncs: Sequence[Span], step: StepSeconds, places: int
) -> NDArray[np.float64]:
    """Return how long each episode takes in a simulated engine, if it begins when it began."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return np.array(runner.run(_replayed(episodes, syncs, step, places)))


async def _replayed(
    episodes: Sequence[PlayedEpisode], syncs: Sequence[Span], step: StepSeconds, places: int
) -> list[float]:
    names = dict.fromkeys(episode.engine for episode in episodes)
    cores, sampled = Cores(inf), sampled_tokens()
    engines = {
        name: SimulatedEngine(name, step, places=places, cores=cores, threads=1, sampled=sampled) for name in names
    }
    now, origin = asyncio.get_running_loop().time, min(episode.start for episode in episodes)

    async def played(number: int, episode: PlayedEpisode) -> float:
        await asyncio.sleep(episode.start - origin)
        began = now()
        await play_episode(engines[episode.engine], str(number), episode.work)
        return now() - began

    async def synced(sync: Span) -> None:
        await asyncio.sleep(sync.start - origin)
        for engine in engines.values():
            engine.pause()
        await asyncio.sleep(sync.seconds)
        for engine in engines.values():
            engine.resume(0)

    syncing = [asyncio.ensure_future(synced(sync)) for sync in syncs if sync.start >= origin]
    seconds = await asyncio.gather(*(played(number, episode) for number, episode in enumerate(episodes)))
    for task in syncing:
        task.cancel()
    return seconds
