"""Episodes are found in memory as in their parts, also after a resumed run wrote other parts in their place."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.apps.dashboard import episode_index
from rlhf.apps.dashboard.answers import groups_answer
from rlhf.apps.dashboard.episode_index import EpisodeIndex
from rlhf.runs.episode_parts import write_part
from rlhf.runs.episode_query import Question
from rlhf.runs.episode_table import SCHEMA
from rlhf.runs.folder import RunFolder
from rlhf.runs.records import EpisodeOutcome
from tests.pace import scaled
from tests.runs.test_episode_parts import FAILED, PLAYED, written

QUESTIONS = [
    Question(),
    Question(where="reward < 0.5", order="reward, sample"),
    Question(where="reward_parts['exact'] = 1", order="sample DESC", limit=2),
    Question(where="response LIKE '%!'", order="length(response), sample"),
    Question(where="reward > 99"),
]


def in_memory(index: EpisodeIndex, timeout: float = 20.0) -> EpisodeIndex:
    deadline = time.monotonic() + scaled(timeout)
    while not index._views["episodes"].in_memory:
        assert time.monotonic() < deadline
        index.refresh()
        time.sleep(0.01)
    return index


def samples(index: EpisodeIndex) -> list[tuple[Sequence[int], int]]:
    answers = [index.find("episodes", question) for question in QUESTIONS]
    return [
        ([row["sample"] for row in index.rows("episodes", found.places, ["sample"])], found.total) for found in answers
    ]


def test_memory_and_parts_give_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worse = replace(PLAYED, sample=2, reward=-1.0, response="no!")
    written(tmp_path / "episodes", [PLAYED, FAILED])
    written(tmp_path / "episodes", [worse])
    scanned = samples(EpisodeIndex(RunFolder(tmp_path), print))
    monkeypatch.setattr(episode_index, "FIRST_ANSWER_SECONDS", 0.0)
    index = in_memory(EpisodeIndex(RunFolder(tmp_path), print))
    assert samples(index) == scanned
    assert scanned[1:] == [([2, 1], 2), ([2, 1], 2), ([2], 1), ([], 0)]

    write_part(tmp_path / "episodes", 3, [replace(worse, sample=3, reward=-2.0)])
    index.refresh()
    assert index._views["episodes"].in_memory
    assert samples(index)[1] == ([3, 2, 1], 3)

    write_part(tmp_path / "episodes", 2, [replace(worse, sample=5)])
    os.utime(tmp_path / "episodes" / "part-000002.parquet", (1, 1))
    (tmp_path / "episodes" / "part-000003.parquet").unlink()
    index.refresh()
    assert samples(index)[1] == samples(in_memory(index))[1] == ([5, 1], 2)


def test_exported_episodes_have_the_schema_of_the_records(tmp_path: Path) -> None:
    written(tmp_path / "episodes", [PLAYED, FAILED])
    (batch,) = EpisodeIndex(RunFolder(tmp_path), print).batches("episodes", "reward > 0")
    assert batch.schema.equals(SCHEMA, check_metadata=True)
    assert batch.column("reward_parts").to_pylist() == [
        [{"name": "exact", "value": 1.0}, {"name": "format", "value": 0.0}]
    ]


def test_a_group_has_its_own_episodes_once_and_neither_second_uses_nor_the_baseline(tmp_path: Path) -> None:
    other = replace(PLAYED, sample=2, reward=0.0)
    beside = replace(PLAYED, sample=3, reward=9.0, update=None, outcome=EpisodeOutcome.BASELINE)
    again = [replace(one, outcome=EpisodeOutcome.SECOND_USE, update=99, reward=None) for one in (PLAYED, other)]
    written(tmp_path / "episodes", [PLAYED, other, beside, *again])
    index = EpisodeIndex(RunFolder(tmp_path), print)
    for question in (Question(), Question(where="reward >= 0 OR reward IS NULL -- all")):
        (group,) = groups_answer(index, "episodes", question, RunFolder(tmp_path))
        assert (group["episodes"], group["update"], group["highest"]) == (2, PLAYED.update, PLAYED.reward)
        assert [row["sample"] for row in group["rows"]] == [PLAYED.sample, 2]
