"""Durations from the records of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlhf.errors import UserError
from rlhf.recipe.simulation.recorded import fitted_steps, recorded_times, replayed_seconds
from rlhf.recipe.simulation.run import Durations, EpisodeWork, GroupWork
from rlhf.runs.episode_parts import write_part
from rlhf.runs.folder import RunFolder
from rlhf.tracing import Attribute, Span
from tests.runs.test_episode_parts import PLAYED

STEP = Durations(step=0.02, sequence=0.0005, prompt_token=1e-4, train_token=0.01, weight_sync=0.5, rest=0.5, restart=60)
PLACES = 32
SYNCS = [Span(name="weight_sync", start=start, seconds=0.5) for start in (0.0, 30.0, 60.0, 90.0)]


def groups() -> list[GroupWork]:
    """Three updates of 16 long-tailed episodes on each of two engines, as those with `STEP` play them."""
    draw = np.random.default_rng(0)

    def group(update: int, place: int) -> GroupWork:
        tokens = int(min(draw.lognormal(4, 1), 500))
        work = EpisodeWork(prompt_tokens=300, tokens=tokens, engine=f"engine-{place % 2}")
        return GroupWork(episodes=(work,), start=30.0 * update + 0.5, update=update + 1, scoring_seconds=0.25)

    given = [group(update, place) for update in range(3) for place in range(32)]
    seconds = replayed_seconds(given, SYNCS, STEP, PLACES)
    return [
        replace(one, episodes=(replace(one.episodes[0], seconds=round(taken, 6)),))
        for one, taken in zip(given, seconds, strict=True)
    ]


def test_the_seconds_of_a_step_are_found_in_how_long_episodes_took() -> None:
    found = fitted_steps(groups(), SYNCS, STEP, PLACES)
    assert (found.step, found.sequence, found.prompt_token) == pytest.approx((0.02, 0.0005, 1e-4), rel=0.2)


def spans(played: Sequence[GroupWork]) -> Iterator[Mapping[str, Attribute]]:
    for sync in SYNCS:
        yield sync.record
    for ordinal, one in enumerate(played):
        seconds = one.episodes[0].seconds + one.scoring_seconds
        yield Span(name="generate", start=one.start, seconds=seconds, attributes={"ordinal": ordinal}).record
    for update in range(3):
        yield Span(name="wait", start=30.0 * update + 1, seconds=12.0).record
        yield Span(name="train", start=30.0 * update + 13, seconds=10.0, attributes={"version": update}).record
        yield Span(name="evaluate", start=30.0 * update + 24, seconds=2.0).record


def recorded(folder: Path, played: Sequence[GroupWork]) -> RunFolder:
    records = []
    for ordinal, group in enumerate(played):
        (one,) = group.episodes
        records.append(
            replace(
                PLAYED, ordinal=ordinal, sample=0, update=group.update, engine=one.engine, turns=None,
                generate_seconds=one.seconds, sampled_tokens=one.tokens,
                segment_lengths=[one.prompt_tokens + one.tokens],
            )
        )  # fmt: skip
    (folder / "episodes").mkdir()
    write_part(folder / "episodes", 1, records)
    (folder / "spans.jsonl").write_text("".join(f"{json.dumps(span)}\n" for span in spans(played)))
    return RunFolder(folder)


def test_a_run_gives_the_durations_of_its_parts(tmp_path: Path) -> None:
    played = groups()
    found = recorded_times(recorded(tmp_path, played), places=PLACES)
    assert found.update_seconds == pytest.approx(28.0)
    assert (found.durations.weight_sync, found.durations.rest) == pytest.approx((0.5, 30 - 12 - 10 - 2 - 0.5))
    counted = [one for one in played if one.start >= 30]
    assert [group.episodes for group in found.groups] == [group.episodes for group in counted]
    assert {round(group.scoring_seconds, 5) for group in found.groups} == {0.25}
    assert found.durations.train_token == pytest.approx(20 / sum(group.trained_tokens for group in counted))


def test_a_run_of_two_updates_is_too_short(tmp_path: Path) -> None:
    folder = recorded(tmp_path, groups()[:4])
    lines = [line for line in folder.spans.read_text().splitlines() if '"start": 90.0' not in line]
    folder.spans.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(UserError, match="has 2 updates; to simulate, record 3"):
        recorded_times(folder, places=PLACES)


def test_a_run_without_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no recorded times: it has no spans"):
        recorded_times(RunFolder(tmp_path), places=PLACES)
