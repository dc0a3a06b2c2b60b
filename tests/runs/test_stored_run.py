"""Run folders, whole, growing, damaged and of other kinds, and what is read of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf.errors import UserError
from rlhf.runs.owner import Claim, Owner, write_claim
from rlhf.runs.stored_run import read_metrics, read_run
from tests.runs.made_run import made_run


def test_a_run_is_read_while_it_is_written_and_when_it_has_ended(tmp_path: Path) -> None:
    run = read_run(made_run(tmp_path / "run", [{"reward/mean": 0.5}, {"reward/mean": 0.75}]))
    assert (run.name, run.updates, run.summary) == ("made", 40, None)
    assert [(row["update"], row["reward/mean"]) for row in run.rows] == [(1, 0.5), (2, 0.75)]
    run.folder.summary.write_text(json.dumps({"outcome": "finished"}))
    assert read_run(run.folder.path).summary == {"outcome": "finished"}


def test_curves_begin_with_the_evaluation_of_the_start(tmp_path: Path) -> None:
    sets = {"easy": {"start": {"avg@1": 0.25}, "end": {"avg@1": 1.0}}}
    summary = {"outcome": "finished", "eval_reward_start": 0.25, "evaluations": sets}
    run = read_run(made_run(tmp_path / "run", [{"reward/mean": 0.5, "seconds/update": 4.0}], summary))
    assert run.curve_rows == ({"update": 0, "time": 6.0, "eval/reward": 0.25, "eval/easy/avg@1": 0.25}, *run.rows)
    going_on = read_run(made_run(tmp_path / "other", [{"reward/mean": 0.5}]))
    assert going_on.curve_rows == going_on.rows


def test_a_summary_of_before_the_resumption_is_not_the_end(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", [], summary={"outcome": "saved: SIGTERM"})
    owner = Owner.claim(folder)
    assert (read_run(folder).writing, read_run(folder).summary) == (True, None)
    owner.give_back()
    assert (read_run(folder).writing, read_run(folder).summary) == (False, {"outcome": "saved: SIGTERM"})


def test_rows_of_one_update_are_joined_and_a_line_that_is_being_written_is_left(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"update": 1, "a": 1}\n{"update": 1, "b": NaN, "c": null}\n{"update": 2, "a": ')
    assert read_metrics(file) == ({"update": 1, "a": 1, "b": None, "c": None},)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("recipe.yaml", None, "is not a run folder: it has no recipe.yaml"),
        ("recipe.yaml", b"name: x\n", "recipe.yaml is not the recipe of a run"),
        ("recipe.yaml", b"\xff\xfe{", "recipe.yaml is not the recipe of a run"),
        ("recipe.yaml", b"a: [", "recipe.yaml is not the recipe of a run"),
        ("metrics.jsonl", b'{"update": 1}\nhalf\n', "line 2 is not a JSON object"),
        ("metrics.jsonl", b'{"update": 1, "a": "<b>"}\n', "line 1 does not hold the metrics of an update"),
        ("metrics.jsonl", b"[1]\n", "line 1 is not a JSON object"),
        ("metrics.jsonl", b"\xff\n", "line 1 is not a JSON object"),
        ("summary.json", b"[]", "summary.json is not the summary of a run"),
        ("summary.json", b"{", "summary.json is not the summary of a run"),
    ],
)
def test_what_is_no_run_or_is_damaged_is_one_clear_error(
    tmp_path: Path, file: str, content: bytes | None, said: str
) -> None:
    folder = made_run(tmp_path / "run", [])
    (folder / file).unlink(missing_ok=True)
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_run(folder)


@pytest.mark.parametrize(
    ("claim", "writing"),
    [(Claim(), True), (Claim(ended=True), False), (Claim(began=1), False), (Claim(machine="another", began=1), True)],
)
def test_who_writes_is_known_by_the_claim(tmp_path: Path, claim: Claim, writing: bool) -> None:
    folder = made_run(tmp_path / "run", [])
    (folder / "owner").mkdir()
    write_claim(folder / "owner" / "000001", claim)
    assert read_run(folder).writing == writing
