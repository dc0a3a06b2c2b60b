"""What is no run, is damaged, or cannot be written is one line that names it and exit code 2, and changes nothing: for
every command that looks at runs. `apps/dashboard` has what a page may not ask, test_one_owner.py has two writers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlhf.apps.cli.main import main
from rlhf.apps.dashboard.library import Library
from rlhf.durable import files_below
from rlhf.errors import DataError
from rlhf.runs.episode_parts import parts_in
from rlhf.runs.episode_query import Question
from rlhf.runs.episode_table import VERSION_KEY, table_of
from tests.runs.made_run import made_run
from tests.runs.test_episode_parts import FAILED, PLAYED, written

NO_RUNS = ("empty", "notes.txt")
NO_RUN = "is not a run folder: it has no recipe.yaml"
NONE_IN_IT = "is not a run folder and contains none: a run folder has a recipe.yaml"
NO_EPISODES = "there are no recorded episodes; give a run folder, or its folder or file of episodes"
ABSENT = "No such file or directory"
NOT_WRITTEN = {"absent/new": ABSENT, "notes.txt/new": "Not a directory", "/proc/new": ABSENT}
NEWER = "its schema is 3, but this rlhf reads up to 2; install a newer one"
PART = "part-000001.parquet"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and what is none."""
    place = tmp_path_factory.mktemp("place")
    run = made_run(place / "run", [{"reward/mean": 0.5}])
    (run / "owner").mkdir()
    written(run / "episodes", [PLAYED], [FAILED])
    made_run(place / "damaged", [{"reward/mean": 0.5}])
    part = parts_in(written(place / "damaged" / "episodes", [PLAYED]))[0]
    content = bytearray(part.read_bytes())
    content[4:-400] = bytes(len(content) - 404)
    part.write_bytes(content)
    (place / "newer" / "episodes").mkdir(parents=True)
    table = table_of([PLAYED]).replace_schema_metadata({VERSION_KEY: b"3"})
    pq.write_table(table, place / "newer" / "episodes" / PART)
    (place / "empty").mkdir()
    (place / "folder.html").mkdir()
    (place / "notes.txt").write_text("not JSON\n")
    return place


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(((command, what), f"{what} {NO_RUN}") for command in ("top", "report") for what in NO_RUNS),
        *((("view", what), f"{what} {NONE_IN_IT}") for what in NO_RUNS),
        (("view", "run", "absent"), "absent does not exist"),
        *(((command, "absent"), "absent is not a run folder: it does not exist") for command in ("top", "report")),
        (("episodes", "absent"), "absent does not exist"),
        (("episodes", "empty"), f"empty: {NO_EPISODES}"),
        (("episodes", "notes.txt"), "notes.txt: line 1 is not a JSON object"),
        (("episodes", "newer"), f"newer/episodes/{PART}: {NEWER}"),
        (("episodes", "damaged"), PART),
        (("episodes", "damaged", "--format", "parquet", "-o", "new"), PART),
        *((("episodes", "run", "--format", form, "-o", name), f"{name} cannot be written ({why})")
          for form in ("jsonl", "parquet") for name, why in NOT_WRITTEN.items()),
        (("episodes", "run", "--format", "parquet", "-o", f"run/episodes/{PART}"), f"{PART} exists"),
        (("episodes", "run", "--text", "-o", "notes.txt"), "notes.txt exists: name another, or delete it"),
        (("episodes", "run", "--columns", "task::int", "-o", "new"), "Could not convert string 't/1'"),
        *((("report", "run", "-o", f"{name}.html"), f"{name}.html cannot be written ({why})")
          for name, why in NOT_WRITTEN.items()),
        (("report", "run", "-o", "folder.html"), "folder.html cannot be written (Is a directory)"),
        (("report", "run", "-o", "report.pdf"), "a report is an HTML file: report.pdf does not end in .html"),
        (("generate", "run", "?", "--image", "absent"), "--image absent is the file 'absent': No such file"),
        (("generate", "run", "?", "--image", "notes.txt"), "--image notes.txt is in no format that pillow reads"),
        (("explain", "rewrd/mean"), "no metric begins with 'rewrd/mean'; did you mean 'reward/mean'?"),
        (("explain", "\x1b[2J"), r"no metric begins with '\\x1b[2J'"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)  # fmt: skip
def test_it_is_one_line_that_names_it_and_changes_nothing(
    place: Path, words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["rlhf", *words])
    before = {file: file.read_bytes() for file in files_below(place)}
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert shown.err.startswith("error: ")
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert {file: file.read_bytes() for file in files_below(place)} == before


def test_the_page_refuses_newer_records_and_leaves_out_what_is_cut_off(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataError, match=NEWER):
        Library({"newer": place / "newer"}).episodes("newer")
    (place / "cut").mkdir()
    written(place / "cut" / "episodes", [PLAYED], [FAILED], [PLAYED])
    os.truncate(place / "cut" / "episodes" / PART, 100)
    found = Library({"cut": place / "cut"}).episodes("cut").find("episodes", Question())
    assert found.places == [(2, 0), (3, 0)]
    assert [line.partition(" (")[0] for line in caplog.messages] == [f"{place}/cut/episodes/{PART} is damaged"]
