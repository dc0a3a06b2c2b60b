"""Parts of episodes: written beside the event loop, whole or not at all, and readable by everybody's tools."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf.errors import DataError, DiskFailed
from rlhf.runs.episode_parts import EpisodeParts, drop_parts_after, lost_parts, parts_in, read_episodes, write_part
from rlhf.runs.episode_query import Question, ask, open_episodes
from rlhf.runs.episode_records import ended_by_failure
from rlhf.runs.episode_table import SCHEMA, VERSION_KEY, records_in, table_of
from rlhf.runs.records import COLUMNS, EpisodeOutcome, EpisodeRecord, as_row, record_of_row
from rlhf.types import Failed, Task, Ticket

PLAYED = EpisodeRecord(
    ordinal=3, sample=1, task="t/1", outcome=EpisodeOutcome.TRAINED, admitted_version=1, update=2,
    prompt=[{"role": "user", "content": "6*7?"}], answer="42", response="42", status="terminated", reward=0.1,
    reward_parts={"exact": 1.0, "format": 0.0}, advantage=-0.5,
    advantages=np.array([np.nan, 0.25, -1], np.float32), segment_lengths=[3],
    token_ids=np.array([7, 8, 151_000], np.int32), kinds=np.array([0, 1, 1], np.int8),
    behaviour_logprobs=np.array([np.nan, -1e-7, -20.125], np.float32),
    proximal_logprobs=np.array([np.nan, -2e-7, -20.25], np.float32), versions=np.array([-1, 1, 1], np.int32),
    turns=[{"segment": 0, "start": 1, "stop": 3, "reward": None, "terminated": True, "truncated": False, "message": 1}],
    conversation=[
        {"role": "user", "content": "6*7?"},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {"x": [1, {"y": None}]}}]},
    ],
)  # fmt: skip
FAILED = EpisodeRecord(
    ordinal=4, sample=0, task="t/2", outcome=EpisodeOutcome.FAILED, admitted_version=1, prompt=[], failure_kind="engine"
)


def written(folder: Path, *groups: list[EpisodeRecord]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, records in enumerate(groups, 1 + len(parts_in(folder))):
        write_part(folder, number, records)
    return folder


def rows(folder: Path, **given: Any) -> list[dict[str, Any]]:
    return [as_row(record) for record in read_episodes(folder, **given)]


def test_the_schema_has_the_columns_of_a_record() -> None:
    assert tuple(SCHEMA.names) == COLUMNS


def test_a_record_comes_back_as_it_was_with_every_float(tmp_path: Path) -> None:
    floats = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    floats = floats[np.isfinite(floats)]
    long = replace(PLAYED, behaviour_logprobs=floats, advantages=None)
    assert rows(written(tmp_path / "parts", [PLAYED, FAILED, long])) == [as_row(r) for r in (PLAYED, FAILED, long)]


def test_parts_of_schema_1_are_read_also_beside_newer_ones(tmp_path: Path) -> None:
    (old,) = parts_in(Path(__file__).parent / "schema_1")
    folder = tmp_path / "parts"
    folder.mkdir()
    shutil.copy(old, folder)
    assert "engine_logprobs" in pq.read_schema(old).names
    turns = [{name: value for name, value in turn.items() if name != "message"} for turn in PLAYED.turns or ()]
    assert rows(folder) == [as_row(replace(PLAYED, turns=turns)), as_row(FAILED)]
    written(folder, [PLAYED])
    question = Question(columns=("behaviour_logprobs[3]", "proximal_logprobs[3]"), where="reward = 0.1")
    with open_episodes(folder, print) as connection:
        assert ask(connection, "episodes", question).fetchall() == [(-20.125, -20.25)] * 2


def test_json_lines_of_schema_1_are_read() -> None:
    row = as_row(PLAYED)
    row |= {"engine_logprobs": row.pop("behaviour_logprobs"), "learner_logprobs": row.pop("proximal_logprobs")}
    assert as_row(record_of_row(row)) == as_row(PLAYED)


def test_text_that_is_no_unicode_is_written_with_its_escape(tmp_path: Path) -> None:
    half = replace(PLAYED, response="a\ud800b", prompt=[{"role": "user", "content": "\udfff"}], answer="\x1b[2J")
    (row,) = rows(written(tmp_path / "parts", [half]))
    assert (row["response"], row["prompt"][0]["content"], row["answer"]) == ("a\\ud800b", "\\udfff", "\x1b[2J")


def test_a_slice_of_a_table_has_its_own_tokens() -> None:
    (record,) = records_in(table_of([FAILED, PLAYED, PLAYED]).slice(1, 1))
    assert as_row(record) == as_row(PLAYED)


def test_a_writer_goes_on_after_the_parts_that_are_there_and_a_resumed_run_drops_the_newer(tmp_path: Path) -> None:
    written(tmp_path / "parts", [PLAYED], [FAILED])
    written(tmp_path / "parts", [PLAYED, PLAYED])
    names = [part.name for part in parts_in(tmp_path / "parts")]
    assert names == ["part-000001.parquet", "part-000002.parquet", "part-000003.parquet"]
    drop_parts_after(tmp_path / "parts", 1)
    assert rows(tmp_path / "parts") == [as_row(PLAYED)]


def test_a_part_cut_in_the_middle_is_told_in_a_line_and_the_others_are_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "parts", [PLAYED], [FAILED], [PLAYED])
    broken = parts_in(folder)[0]
    os.truncate(broken, broken.stat().st_size // 2)
    told: list[str] = []
    assert rows(folder, tell=told.append) == [as_row(FAILED), as_row(PLAYED)]
    (line,) = told
    assert line.startswith(f"{broken} is damaged (cut off after ")
    parts_in(folder)[1].unlink()
    damaged, missing = lost_parts(folder, 3)
    assert damaged.startswith(f"part 1 of {folder} is lost (cut off after")
    assert missing == f"part 2 of {folder} is lost (it is missing)"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (table_of([FAILED]).replace_schema_metadata({VERSION_KEY: b"3"}), "its schema is 3"),
        (pa.table({"a": [1]}), "no rlhf episodes"),
    ],
    ids=["a newer schema", "another table"],
)
def test_what_another_program_wrote_is_refused(tmp_path: Path, table: pa.Table, words: str) -> None:
    pq.write_table(table, tmp_path / "part-000001.parquet")
    with pytest.raises(DataError, match=words):
        list(read_episodes(tmp_path))


async def test_a_full_disk_is_told_at_the_next_cut_and_leaves_no_half_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = EpisodeParts(tmp_path / "parts")
    monkeypatch.setattr(pq, "write_table", full)
    writer.add(ended_by_failure(Ticket(ordinal=0, version=0), Task(id="t", messages=()), Failed(kind="engine"), 1))
    writer.cut()
    with pytest.raises(DiskFailed, match=r"part-000001\.parquet cannot be written \(No space left"):
        await writer.written()
    assert list((tmp_path / "parts").iterdir()) == []
    writer.close()


def test_the_folder_is_a_dataset_for_others(tmp_path: Path) -> None:
    from datasets import load_dataset

    written(tmp_path / "parts", [PLAYED], [FAILED])
    dataset = load_dataset(
        "parquet", data_dir=str(tmp_path / "parts"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert list(dataset["reward"]) == [0.1, None]
    assert dataset[0]["token_ids"] == [7, 8, 151_000]
    assert dataset[0]["reward_parts"] == [{"name": "exact", "value": 1.0}, {"name": "format", "value": 0.0}]
