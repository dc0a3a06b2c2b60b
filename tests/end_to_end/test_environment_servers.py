"""A run on environment servers of its own, recorded, and the same run from the recording, without any."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.running import Run, largest_difference, train
from tests.end_to_end.test_environment import RECIPE, SMALL

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]


def test_it_trains_on_servers_that_it_starts_and_repeats_offline_bit_for_bit(tmp_path: Path, cache: Path) -> None:
    recording = f"environment.recording.path={tmp_path / 'tools.jsonl'}"
    served = ("cluster.kind=ray", "environment.servers=2", recording, "environment.recording.mode=record")
    live = train(tmp_path / "live", cache, *SMALL, *served, recipe=RECIPE)
    logs = {log.stem for log in (live.folder / "logs").glob("environment-*.log")}
    assert (live.summary["outcome"], logs) == ("finished", {"environment-0", "environment-1"})
    assert largest_difference(live.episodes) <= 1e-4
    again = train(tmp_path / "again", cache, *SMALL, recording, recipe=RECIPE)
    assert len(live.episodes) == 32
    assert played(again) == played(live)


def played(run: Run) -> list[tuple[object, ...]]:
    """Every episode as it was played, in order of training."""
    ordered = sorted(run.episodes, key=lambda one: (one.ordinal, one.sample))
    return [(one.ordinal, one.sample, one.token_ids, one.turns, one.reward, one.conversation) for one in ordered]
