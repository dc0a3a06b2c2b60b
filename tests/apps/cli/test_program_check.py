"""`rlhf reward check` says which worthless programs a task's tests accept, and what the tests could do about it."""

from __future__ import annotations

import pytest

from rlhf.apps.checks.hostile_programs import EMPTY, EXACTLY, GIVEN, NAN, hostile_programs
from rlhf.apps.checks.program_check import program_check
from rlhf.apps.cli.reward_check import run_reward_check
from rlhf.errors import DataError
from rlhf.reward.code.config import CodeRewardConfig

CONFIG = CodeRewardConfig(timeout_seconds=8, memory_mb=128)
WEAK = {
    "answers NaN": ("assert not abs(half(5) - 2.5) > 1e-9", NAN),
    "answers an empty list": ("assert all(a == b for a, b in zip(pair(3), [3, 3]))", EMPTY),
    "answers True": ("assert one(3) == 1", EXACTLY),
    "empties its arguments": (
        "items = [3, 1]\nordered(items)\nassert all(a <= b for a, b in zip(items, items[1:]))",
        GIVEN,
    ),
}


@pytest.mark.engine
def test_weak_tests_are_named_with_what_they_accept_and_what_to_do(capfd: pytest.CaptureFixture[str]) -> None:
    programs = {name: program for name, program in hostile_programs().items() if name in (*WEAK, "equals everything")}
    assert program_check(CONFIG, [{"tests": [test]} for test, _ in WEAK.values()], programs) == 1
    told = capfd.readouterr().out.splitlines()
    for name, (_, advice) in WEAK.items():
        assert any(line.startswith(name) and line.endswith(f"ACCEPTED: {advice}") for line in told), name
    assert told[-1] == "4 of 5 hostile programs are accepted"


@pytest.mark.engine
def test_tests_beside_the_code_accept_what_others_refuse(capfd: pytest.CaptureFixture[str]) -> None:
    programs = {"equals everything": hostile_programs()["equals everything"]}
    assert program_check(CONFIG, [], programs) == 0
    assert "tests of row 1: 3, apart from the code\n" in capfd.readouterr().out
    assert program_check(CONFIG, [{"tests": "assert Add(1, 2) == Add(2, 1)"}], programs) == 1
    assert (
        "tests of row 1: in the code's process, where it can replace what they check: they use"
        in capfd.readouterr().out
    )


def test_a_row_without_tests_says_so() -> None:
    with pytest.raises(DataError, match="row 1: the row has no tests in column 'tests'"):
        program_check(CONFIG, [{}])


@pytest.mark.engine
def test_the_kind_code_is_attacked_with_programs(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"answers None": hostile_programs()["answers None"]}
    monkeypatch.setattr("rlhf.apps.checks.program_check.hostile_programs", lambda: few)
    assert run_reward_check("code") == 0
    assert "tests of row 1: 3, apart from the code" in capfd.readouterr().out
