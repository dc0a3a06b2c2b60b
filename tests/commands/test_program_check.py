"""`rlhf reward check` says which worthless programs a task's tests accept, and what the tests could do about it."""

from __future__ import annotations

import pytest

from rlhf.commands.program_check import program_check, rows_of, said_of
from rlhf.commands.reward_check import run_reward_check
from rlhf.errors import DataError
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.hostile_programs import EMPTY, EXACTLY, GIVEN, NAN, hostile_programs
from rlhf.reward.code.needs import needs_trust
from rlhf.reward.code.unit_tests import Asserts

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
    assert told[-1] == "4 of 5 hostile programs are accepted: look at them"


@pytest.mark.engine
def test_tests_that_trust_the_code_accept_what_others_refuse(capfd: pytest.CaptureFixture[str]) -> None:
    programs = {"equals everything": hostile_programs()["equals everything"]}
    rows = rows_of("code", [], CONFIG)
    assert program_check(CONFIG, rows, programs) == 0
    assert program_check(CONFIG.model_copy(update={"tests": "trusting"}), rows, programs) == 1
    assert "with reward.code.tests: values" in capfd.readouterr().out


def test_a_row_without_tests_says_so() -> None:
    with pytest.raises(DataError, match="row 1: the row has no tests in column 'tests'"):
        program_check(CONFIG, [{}])


@pytest.mark.engine
def test_the_kind_code_is_attacked_with_programs(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"answers None": hostile_programs()["answers None"]}
    monkeypatch.setattr("rlhf.commands.program_check.hostile_programs", lambda: few)
    assert run_reward_check("code") == 0
    assert "tests of row 1: 3, apart from the code" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("assert Stack([1]) == Stack([1])", "they compare Stack([1])"),
        ("stack = Stack()\nassert stack != None", "they compare stack"),
        ("assert bool(Point(1, 2))", "they convert Point(1, 2)"),
        ("assert (Point(1, 2) + Point(1, 2)).x == 2", "they compute with Point(1, 2)"),
        ("class Two(Stack):\n    pass\nassert Two().pop() == 1", "the class Two is one of the code's kind"),
        ("class Node:\n    pass\nassert f(Node()) == 1", "they define the class Node"),
        ("with Lock() as lock:\n    assert lock.held() == 1", "they enter Lock()"),
        (
            "assert count_lines(open('x')) == 1",
            "they use builtins.open, which acts on or observes the process that it runs in",
        ),
        (
            "assert eval(expression()) == 5",
            "they use builtins.eval, which acts on or observes the process that it runs in",
        ),
        ("assert template().format(1) == '1'", "they may reach what the code names, by template().format"),
        ("a = make()\nb = make()\nassert a is not b", "they ask whether a is not b"),
        ("assert make() is make()", "they ask whether make() is make()"),
        (
            "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as said:\n    greet()\n"
            "assert said.getvalue() == 'hello'",
            "they use contextlib.redirect_stdout, which acts on or observes the process that it runs in",
        ),
    ],
)
def test_tests_that_need_objects_are_told_by_their_text(test: str, words: str) -> None:
    assert needs_trust(Asserts(texts=(test,))) == words
    assert words in said_of({"tests": [test]}, CONFIG)


@pytest.mark.parametrize(
    "test",
    [
        "assert add(1, 2) == 3",
        "stack = Stack()\nstack.push(1)\nassert stack.pop() == 1 and len(stack) == 0",
        "assert 3 in Stack([3])",
        "assert f(1) is None and f(2) is True",
        "items = [1]\nassert f(items) is items",
        "try:\n    f()\nexcept Refused:\n    pass\nelse:\n    assert False",
        "items = [1]\nbag = Bag(items)\nitems.append(2)\nassert bag.get() == [1]",
        "bag = Bag([1])\nbag.get().append(5)\nassert bag.get() == [1]",
        "assert isinstance(add(1, 2), int) and isinstance(make(), Stack)",
        "assert str(Point(1, 2)) == '(1, 2)'",
        "import unittest\nclass Cases(unittest.TestCase):\n    def test_one(self): self.assertEqual(add(1, 2), 3)",
        "import math\nassert math.isclose(area(1), math.pi)",
        "def check(candidate):\n    assert candidate([1]) == [1]\ncheck(same)",
        "try:\n    f(-1)\n    assert False\nexcept ValueError:\n    pass",
    ],
)
def test_tests_of_values_need_no_trust(test: str) -> None:
    assert needs_trust(Asserts(texts=(test,))) == ""
