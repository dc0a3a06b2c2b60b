"""The whole public directory through the library, and the runner itself."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np

from tests.goldens.declined import declined
from tests.goldens.records import Answer, Record, records
from tests.goldens.verdicts import Verdict, counts, distance, judge, judge_record
from tests.pace import scaled

ROOT = Path(__file__).parents[2]
PUBLIC = Path(__file__).parent / "public"


@cache
def verdicts() -> list[Verdict]:
    return judge(PUBLIC)


def test_no_array_of_the_public_directory_differs_and_no_more_are_declined_than_before() -> None:
    assert [verdict for verdict in verdicts() if verdict.outcome == "differ"] == []
    assert counts(verdicts()) == {"agree": 2384, "declined": 982, "differ": 0}


def test_every_declined_entry_has_a_reason_and_covers_something() -> None:
    public = list(records(PUBLIC))
    for entry in declined():
        assert entry.reason
        assert any(entry.covers(record, quantity) for record in public for quantity in record.outputs), entry


def test_what_is_wrong_or_unknown_is_said_to_differ() -> None:
    [group] = [r for r in records(PUBLIC) if r.family == "vtrace" and r.key == "one.ref.v0"]
    wrong = {name: array + 1e-3 for name, array in group.outputs.items()}
    changed = Record(group.family, group.case, group.peer, group.variant, group.params, group.inputs, wrong)
    unknown = Record("vtrace", "new", "ref", "v9", None, group.inputs, group.outputs)
    broken = Record("vtrace", "new", "ref", "v9", {}, group.inputs, group.outputs)
    for record in (changed, unknown, broken):
        assert {verdict.outcome for verdict in judge_record(record)} == {"differ"}


def test_masked_positions_are_not_compared_and_a_nan_never_agrees() -> None:
    theirs = np.array([[1.0, 2.0]])
    assert distance(Answer([[1.0, np.nan]], np.array([[1, 0]])), theirs) == ""
    assert distance(Answer([[1.0, np.nan]]), theirs)
    assert distance(Answer([1.0, 2.0]), theirs).startswith("shape")


def test_the_last_line_of_the_runner_is_the_result_and_it_fails_when_something_differs(tmp_path: Path) -> None:
    for name in ("manifest.json", "vtrace.npz"):
        (tmp_path / name).write_bytes((PUBLIC / name).read_bytes())
    good = _run(tmp_path)
    with np.load(tmp_path / "vtrace.npz") as archive:
        arrays = {key: array + 1 if key == "A.ref.v0.vs" else array for key, array in archive.items()}
    np.savez(tmp_path / "vtrace.npz", **arrays)
    bad = _run(tmp_path)
    assert (good.returncode, bad.returncode) == (0, 1)
    assert good.stdout.splitlines()[-1].startswith('RESULT {"agree": 120, "declined": 0, "differ": 0, "families": {')
    assert "differ   vtrace: A.ref.v0.vs: 1 apart" in bad.stdout


def _run(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.goldens", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=scaled(60), check=False)
