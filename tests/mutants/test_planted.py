"""The lists of faults fit the tree: whoever changes a line that a fault changes is told here, and not in an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.heart import read_heart
from tests.mutants.planted import Fault, Rotten, check, planted, read_faults
from tests.mutants.trees import ROOT

FAULTS = read_faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_and_its_tests_are_there(fault: Fault) -> None:
    check([fault], ROOT)


def test_most_faults_need_no_engine_to_be_caught() -> None:
    assert sum(not fault.engine for fault in FAULTS) >= 30


def test_the_modules_of_the_heart_and_their_tests_are_there() -> None:
    for module in read_heart():
        assert (ROOT / module.file).is_file(), module.file
        assert all((ROOT / test).exists() for test in module.tests), module.file


def test_what_is_listed_as_a_survivor_is_a_line_of_its_module_and_has_a_reason() -> None:
    for module in read_heart():
        lines = {line.strip() for line in (ROOT / module.file).read_text().splitlines()}
        for one in module.survivors:
            assert one.was in lines, f"{module.file} has no line {one.was}"
            assert one.reason, one


@pytest.mark.parametrize(
    ("text", "new", "words"),
    [
        ("x = 2\n", "x = 3", "its old text is 0 times in module.py"),
        ("x = 1\nx = 1\n", "x = 3", "its old text is 2 times in module.py"),
        ("x = 1\n", "x = 1", "its new text is its old one"),
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
