"""Durations from the records of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlhf.errors import UserError
from rlhf.recipe.simulation.recorded import PlayedEpisode, fitted_steps, recorded_times, replayed_seconds
from rlhf.recipe.simulation.workload import EpisodeWork, StepSeconds
from rlhf.runs.episode_parts import write_part
from rlhf.runs.folder import RunFolder
from rlhf.runs.tracing import Attribute, Span
from tests.runs.test_episode_parts import PLAYED

STEP = StepSeconds(fixed=0.02, sequence=0.0005, prompt_token=1e-4, chunk=2048)
PLACES = 32
SYNCS = [Span(name="weight_sync", start=start, seconds=0.5) for start in (0.0, 30.0, 60.0, 90.0)]


def episodes() -> list[PlayedEpisode]:
    """Three updates of 16 long-tailed episodes on each of two engines, as those with `STEP` play them."""
    draw = np.random.default_rng(0)
    given = [
        PlayedEpisode(
            ordinal=update * 32 + place,
            engine=f"engine-{place % 2}",
            start=30.0 * update + 0.5,
            generate_seconds=0.0,
            filtered=False,
            update=update + 1,
            work=EpisodeWork(prompt_tokens=300, tokens=int(min(draw.lognormal(4, 1), 500))),
        )
        for update in range(3)
        for place in range(32)
    ]
    seconds = replayed_seconds(given, SYNCS, STEP, PLACES)
    return [replace(one, generate_seconds=taken) for one, taken in zip(given, seconds, strict=True)]


def test_the_seconds_of_a_step_are_found_in_how_long_episodes_took() -> None:
    found = fitted_steps(episodes(), SYNCS, PLACES, STEP.chunk)
    assert (found.fixed, found.sequence, found.prompt_token) == pytest.approx((0.02, 0.0005, 1e-4), rel=0.2)


def spans(played: list[PlayedEpisode]) -> Iterator[Mapping[str, Attribute]]:
    for sync in SYNCS:
        yield sync.record
    for one in played:
        seconds = one.generate_seconds + 0.25
        yield Span(name="generate", start=one.start, seconds=seconds, attributes={"ordinal": one.ordinal}).record
    for update in range(3):
        yield Span(name="wait", start=30.0 * update + 1, seconds=12.0).record
        yield Span(name="train", start=30.0 * update + 13, seconds=10.0, attributes={"version": update}).record
        yield Span(name="evaluate", start=30.0 * update + 24, seconds=2.0).record


def recorded(folder: Path, played: list[PlayedEpisode]) -> RunFolder:
    records = []
    for one in played:
        total = one.work.prompt_tokens + one.work.tokens
        records.append(
            replace(
                PLAYED, ordinal=one.ordinal, sample=0, update=one.update, engine=one.engine, turns=None,
                generate_seconds=one.generate_seconds, sampled_tokens=one.work.tokens, segment_lengths=[total],
            )
        )  # fmt: skip
    (folder / "episodes").mkdir()
    write_part(folder / "episodes", 1, records)
    (folder / "spans.jsonl").write_text("".join(f"{json.dumps(span)}\n" for span in spans(played)))
    return RunFolder(folder)


def test_a_run_gives_the_durations_of_its_parts(tmp_path: Path) -> None:
    played = episodes()
    found = recorded_times(recorded(tmp_path, played), places=PLACES, chunk=STEP.chunk)
    durations = found.workload.durations
    assert found.update_seconds == pytest.approx(28.0)
    assert (durations.weight_sync, durations.rest) == pytest.approx((0.5, 30 - 12 - 10 - 2 - 0.5))
    counted = [one for one in played if one.start >= 30]
    assert [group.episodes for group in found.workload.groups] == [(one.work,) for one in counted]
    assert {round(group.scoring_seconds, 6) for group in found.workload.groups} == {0.25}
    trained = sum(one.work.prompt_tokens + one.work.tokens for one in counted)
    assert durations.train_token == pytest.approx(20 / trained)


def test_a_run_of_two_updates_is_too_short(tmp_path: Path) -> None:
    folder = recorded(tmp_path, episodes()[:4])
    lines = [line for line in folder.spans.read_text().splitlines() if '"start": 90.0' not in line]
    folder.spans.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(UserError, match="has 2 updates; to simulate, record 3"):
        recorded_times(folder, places=PLACES, chunk=STEP.chunk)


def test_a_run_without_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no recorded times: it has no spans"):
        recorded_times(RunFolder(tmp_path), places=PLACES, chunk=STEP.chunk)
