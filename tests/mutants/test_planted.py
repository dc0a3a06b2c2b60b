"""The lists of faults fit the tree, so that a change of a line that a fault changes fails here and not in an hour."""

from __future__ import annotations

import pytest

from tests.mutants.heart import read_heart
from tests.mutants.planted import FAULTS, check, read_faults
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
