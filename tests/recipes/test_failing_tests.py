"""The folders whose test an agent repairs, and what a tiny policy sees of it before."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from recipes.tasks.failing_tests import SIGNS, demonstrations, tasks


def test_each_test_fails_as_shipped_and_passes_with_the_right_sign_only(tmp_path: Path) -> None:
    for task in tasks():
        folder = tmp_path / task.id
        shutil.copytree(task.row["folder"], folder)
        code = (folder / "calc.py").read_text()
        head, _, tail = code.rpartition(code.split()[-2])
        passing = {sign for sign in SIGNS.values() if _passes(folder, f"{head}{sign}{tail}")}
        assert passing == {task.answer}
        assert not _passes(folder, code)


def _passes(folder: Path, code: str) -> bool:
    (folder / "calc.py").write_text(code)
    words = [sys.executable, "-B", "-m", "unittest", "-q"]
    return not subprocess.run(words, cwd=folder, capture_output=True, timeout=60).returncode


def test_demonstrations_give_up_or_write_a_right_or_a_wrong_sign() -> None:
    made = list(demonstrations(400, seed=1))
    kinds = Counter(len(one) for one in made)
    assert 0.3 < kinds[3] / len(made) < 0.5
    edits = [one for one in made if len(one) == 7]
    right = sum(f'"newText": "a {SIGNS[code.split()[1].split("(")[0]]} b"' in edit for code, edit in (
        (one[3].content, one[4].content) for one in edits))  # fmt: skip
    assert 0.5 < right / len(edits) < 0.7
    assert made == list(demonstrations(400, seed=1))
