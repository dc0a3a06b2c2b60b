"""Plans over 1 to 128 nodes are those that were read and kept. `python -m tests.cluster` writes them anew."""

from __future__ import annotations

import pytest

from tests.cluster.cases import CASES, GOLDENS, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_plan_is_the_one_that_was_kept(case: Case) -> None:
    assert case.text() == case.file.read_text()


def test_every_kept_plan_has_its_case() -> None:
    assert {file.name for file in GOLDENS.iterdir()} == {case.file.name for case in CASES}
