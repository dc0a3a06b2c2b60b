"""The lists of faults fit the tree, so that a change of a line that a fault changes fails here and not in an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.heart import read_heart
from tests.mutants.planted import FAULTS, Fault, Rotten, check, planted, read_faults
from tests.mutants.trees import ROOT


@pytest.mark.parametrize("name", sorted(path.stem for path in FAULTS.glob("*.toml")))
def test_every_fault_of_a_list_can_be_planted_and_its_tests_exist(name: str) -> None:
    check(read_faults(f"{name}.toml"), ROOT)


def test_no_two_faults_have_one_name() -> None:
    names = [fault.name for fault in read_faults()]
    assert len(names) == len(set(names))


def test_the_modules_of_the_heart_exist_with_their_tests_and_the_lines_of_their_survivors() -> None:
    for module in read_heart():
        assert all((ROOT / test).exists() for test in module.tests), module.file
        lines = {line.strip() for line in (ROOT / module.file).read_text().splitlines()}
        assert [one for one in module.survivors if one.was not in lines or not one.reason] == [], module.file


@pytest.mark.parametrize(
    ("text", "new", "words"),
    [
        ("x = 2\n", "x = 3", "its old text is 0 times in module.py"),
        ("x = 1\nx = 1\n", "x = 3", "its old text is 2 times in module.py"),
        ("x = 1\n", "x = (", "with it module.py is no Python"),
        (None, "x = 3", "there is no file module.py"),
    ],
)
def test_a_fault_that_no_longer_fits_is_an_error_by_its_name(
    tmp_path: Path, text: str | None, new: str, words: str
) -> None:
    if text is not None:
        (tmp_path / "module.py").write_text(text)
    fault = Fault(name="X is wrong", file="module.py", old="x = 1", new=new, tests=())
    with pytest.raises(Rotten, match=f"'X is wrong': {words}"):
        check([fault], tmp_path)


def test_a_fault_changes_its_place_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("x = 1\ny = 2\n")
    assert planted(Fault(name="X", file="module.py", old="x = 1", new="x = 0", tests=()), tmp_path) == "x = 0\ny = 2\n"
