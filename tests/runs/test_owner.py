"""A run folder has one owner: who lives is not disturbed, who died is followed, and who lost it writes no more."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from rlhf.errors import RunTaken
from rlhf.runs import owner
from rlhf.runs.episode_parts import EpisodeParts, parts_in
from rlhf.runs.episode_records import ended_by_failure
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.owner import Claim, Owner
from rlhf.types import Failed, Task, Ticket

WATCH = 0.3


def write_claim(run: Path, claim: Claim, fence: int = 1) -> Path:
    (run / "owner").mkdir(exist_ok=True)
    path = run / "owner" / owner.name(fence)
    path.write_text(json.dumps(asdict(claim)))
    return path


def test_a_second_owner_is_refused_in_a_line_that_names_the_first(tmp_path: Path) -> None:
    first = Owner.claim(tmp_path)
    with pytest.raises(RunTaken, match=rf"belongs to process {os.getpid()} on .*, since 20.*set run\.dir to another"):
        Owner.claim(tmp_path)
    first.check()


@pytest.mark.parametrize("start", [RunFolder.create, RunFolder.keep])
def test_a_second_start_leaves_the_first_one_s_folder_as_it_is(tmp_path: Path, start: object) -> None:
    first = RunFolder.create(tmp_path / "run")
    first.metrics.write_text("{}\n")
    with pytest.raises(RunTaken):
        start(tmp_path / "run")  # type: ignore[operator]
    first.check()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert first.metrics.read_text() == "{}\n"


def test_a_folder_that_was_given_back_is_taken_at_once(tmp_path: Path) -> None:
    Owner.claim(tmp_path).give_back()
    second = Owner.claim(tmp_path, watch_seconds=1000)
    assert second.fence == 2
    assert os.listdir(tmp_path / "owner") == ["000002"]


def test_an_owner_of_this_machine_that_died_is_followed_at_once(tmp_path: Path) -> None:
    words = "import sys; from pathlib import Path; from rlhf.runs.owner import Owner; Owner.claim(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", f"{words}; import os; os._exit(9)", tmp_path], check=False)
    assert Owner.claim(tmp_path, watch_seconds=1000).fence == 2


@pytest.mark.parametrize("claim", ["another process of that number", "never written out"])
def test_a_claim_of_nobody_who_lives_is_followed(tmp_path: Path, claim: str) -> None:
    mine = Claim()
    assert mine.began is not None
    path = write_claim(tmp_path, replace(mine, began=mine.began - 1))
    if claim == "never written out":
        path.write_text("")
    assert Owner.claim(tmp_path, watch_seconds=WATCH).fence == 2


def test_an_owner_elsewhere_that_is_not_touched_any_more_is_followed_and_people_are_told(tmp_path: Path) -> None:
    told: list[str] = []
    write_claim(tmp_path, replace(Claim(), machine="another", host="node7", pid=1))
    assert Owner.claim(tmp_path, told.append, WATCH).fence == 2
    assert "belonged to process 1 on node7" in told[0]
    assert "watching it for 0.3 s" in told[0]


def test_an_owner_elsewhere_that_is_touched_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_claim(tmp_path, replace(Claim(), machine="another", host="node7", pid=1))
    monkeypatch.setattr(owner, "LOOK_SECONDS", 0.01)
    real = owner.stamp
    monkeypatch.setattr(owner, "stamp", lambda seen: (real(seen), os.utime(path))[0])
    with pytest.raises(RunTaken, match="belongs to process 1 on node7"):
        Owner.claim(tmp_path, watch_seconds=5)


def test_the_owner_s_file_is_touched_while_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "TOUCH_SECONDS", 0.02)
    monkeypatch.setattr(owner, "LOOK_SECONDS", 0.02)
    Owner.claim(tmp_path)
    assert owner.touched(tmp_path / "owner" / "000001", 5)


def test_who_was_taken_for_dead_finds_out_before_it_writes(tmp_path: Path) -> None:
    folder = RunFolder.keep(tmp_path)
    lines = JsonlWriter(folder.metrics, may_write=folder.check)
    lines.write([{"update": 1}])
    episodes = EpisodeParts(folder.episodes, may_write=folder.check)
    episodes.add(ended_by_failure(Ticket(ordinal=0, version=0), Task(id="t", messages=()), Failed(kind="engine"), 1))
    write_claim(tmp_path, replace(Claim(), host="node7", pid=12), fence=2)
    with pytest.raises(RunTaken, match=r"now belongs to process 12 on node7.*without changing it further"):
        lines.flush()
    for write in (episodes.cut, partial(folder.write_summary, {})):
        with pytest.raises(RunTaken):
            write()
    assert (folder.metrics.read_text(), folder.summary.exists(), parts_in(folder.episodes)) == ("", False, [])
    folder.give_back()
    assert Owner.claim(tmp_path, watch_seconds=0).fence == 3, "the second owner's claim is untouched"


def test_who_watched_while_others_came_and_went_is_not_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_claim(tmp_path, replace(Claim(), machine="another", host="node7"))

    def others(path: Path, seconds: float) -> bool:
        path.unlink()
        write_claim(tmp_path, Claim(), fence=3)
        return False

    monkeypatch.setattr(owner, "touched", others)
    with pytest.raises(RunTaken, match=f"belongs to process {os.getpid()}"):
        Owner.claim(tmp_path)
    assert os.listdir(tmp_path / "owner") == ["000003"]


def test_a_disk_that_cannot_be_asked_is_not_taken_for_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Owner.claim(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", broken)
        with pytest.raises(OSError, match="Input/output error"):
            mine.check()
    mine.check()


def broken(*arguments: object) -> str:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_an_owner_whose_folder_was_moved_finds_out(tmp_path: Path) -> None:
    folder = RunFolder.keep(tmp_path / "run")
    folder.path.rename(tmp_path / "elsewhere")
    with pytest.raises(RunTaken, match="was moved or deleted"):
        folder.check()


def claimed(run: Path) -> int:
    """In a process of its own: the fence, or 0 for one that was refused."""
    try:
        return Owner.claim(run).fence
    except RunTaken:
        return 0


def test_of_many_who_come_at_once_one_is_the_owner(tmp_path: Path) -> None:
    with get_context("fork").Pool(8) as pool:
        fences = pool.map(claimed, [tmp_path] * 8, chunksize=1)
        assert sorted(fences) == [0] * 7 + [1]
