"""The accounting of samples goes on where a checkpoint left it."""

from __future__ import annotations

from pathlib import Path

from rlhf.runs.episodes import EpisodeWriter
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord


def record(outcome: EpisodeOutcome) -> EpisodeRecord:
    return EpisodeRecord(ordinal=0, sample=0, task="t", outcome=outcome, admitted_version=0, prompt=[])


def test_fates_go_on_from_those_that_were_written(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path / "episodes.jsonl", {"trained": 5, "failed": 2, "evaluated": 9})
    writer.write([record(EpisodeOutcome.TRAINED), record(EpisodeOutcome.UNSCORED)])
    assert writer.outcomes == {"trained": 6, "failed": 2, "evaluated": 9, "unscored": 1}
    assert writer.counts == {
        "admitted": 9, "trained": 6, "filtered": 0, "failed": 2, "unscored": 1, "in_flight": 0,
    }  # fmt: skip
    writer.close()
