"""Tests as datasets write them are run as a test runner would run them, and what nothing would run is no test."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.reward.code.checking.values import OtherException, exception
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.scoring import make_code_scorer
from rlhf.reward.code.unit_tests import Asserts, TestsError, read_tests

FUNCTIONS = "def test_a():\n    assert add(1, 2) == 3\n\ndef test_b():\n    assert add(2, 2) == 4"
CLASS = "class TestAdd{base}:\n\n    def test_a(self):\n        assert add(1, 2) == 3"
GUARD = "\nif __name__ == '__main__':\n    "


def last_lines(tests: Any, **row: Any) -> list[str]:
    read = read_tests({"tests": tests, **row}, CodeRewardConfig(entry_point_column="entry" if row else None))
    assert isinstance(read, Asserts)
    return [text.splitlines()[-1] for text in read.texts]


@pytest.mark.parametrize(
    ("tests", "run"),
    [
        (FUNCTIONS, ["test_a()", "test_b()"]),
        (FUNCTIONS + "\ntest_a()\ntest_b()", ["test_b()"]),
        (FUNCTIONS + GUARD + "test_a()\n    test_b()", ["test_b()"]),
        (FUNCTIONS + GUARD + "pytest.main([__file__])", ["test_a()", "test_b()"]),
        (FUNCTIONS + GUARD + "import sys\n    sys.exit(pytest.main())", ["test_a()", "test_b()"]),
        (CLASS.format(base=""), ["TestAdd().test_a()"]),
        (CLASS.format(base="(unittest.TestCase)") + "\nunittest.main(exit=False)", ["TestAdd('test_a').debug()"]),
        ("sol = Solution()\n" + FUNCTIONS, ["test_a()", "test_b()"]),
        (["def check(c):\n    assert c(1) == 2", "check(add)"], ["check(add)"]),
        ("def helper():\n    assert f() == 1\ndef test_all():\n    helper()", ["test_all()"]),
    ],
)
def test_what_is_defined_as_a_test_is_called_once(tests: Any, run: list[str]) -> None:
    assert last_lines(tests) == run


def test_the_entry_point_is_checked_where_there_is_a_check() -> None:
    assert last_lines("def check(c):\n    assert c(1) == 2", entry="add") == ["check(add)"]
    assert last_lines("def test_a():\n    assert add(1) == 2", entry="add") == ["test_a()"]


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (
            "def check(candidate):\n    assert candidate(1) == 2\ncandidate = add",
            "nothing calls check",
        ),
        (
            "def run_all():\n    assert add(1, 2) == 3\ndef test_c():\n    assert add(0, 0) == 0",
            "nothing calls run_all",
        ),
        ("def test_a(value):\n    assert add(value) == 3", "test_a takes arguments, which need pytest"),
        ("async def test_a():\n    assert await add(1) == 3", "test_a is asynchronous"),
        (
            "class TestA:\n    def setup_method(self): self.a = f\n    def test(self): assert self.a(1)",
            "needs pytest",
        ),
        ("sol = Solution()\nclass Cases:\n    def run(self): assert sol.add(1, 2) == 3", "nothing calls Cases"),
    ],
)
def test_tests_that_would_not_run_are_refused_by_name(tests: str, reason: str) -> None:
    with pytest.raises(TestsError, match=reason):
        read_tests({"tests": tests}, CodeRewardConfig())


def test_a_set_up_that_uses_the_code_runs_after_it() -> None:
    row = {"tests": ["assert depth(root) == 1", "assert root"], "setup": "root = Node(1)"}
    read = read_tests(row, CodeRewardConfig(setup_column="setup"))
    assert isinstance(read, Asserts)
    assert (read.setup, read.texts) == ("", ("root = Node(1)\nassert depth(root) == 1", "assert root"))


@pytest.mark.engine
@pytest.mark.parametrize(
    ("code", "value"),
    [("def add(a, b): return a + b", 1.0), ("def add(a, b): return 0", 0.0), ("def add(a, b): return 3", 0.5)],
)
async def test_each_test_function_is_judged_by_what_it_runs(code: str, value: float) -> None:
    """The first function holds no assert statement, and its definitions stand in the piece of the first."""
    tests = (
        "import pytest\nr = add(2, 2)\ndef test_a():\n    with pytest.raises(TypeError):\n        add(1)\n    "
        "if add(1, 2) != 3: raise ValueError\ndef test_b():\n    assert r == 4"
    )
    assert (await score(code, tests)).value == value


@pytest.mark.engine
@pytest.mark.parametrize(
    "tests",
    [
        "def run(t):\n    try: t()\n    except AssertionError: pass\ndef t(): assert add(1, 2) == 3\nrun(t)",
        "def test_a(): assert add(1, 2) == 3\nadd(0, 0)\ndef one():\n    test_a = 1\n    return test_a\nassert one()",
    ],
)
async def test_an_assert_that_fails_is_not_forgiven_and_a_mention_is_no_call(tests: str) -> None:
    assert (await score("def add(a, b): return 0", tests)).value < 1
    assert (await score("def add(a, b): return a + b", tests)).value == 1


async def score(code: str, tests: str) -> Any:
    scorer = make_code_scorer(CodeRewardConfig(timeout_seconds=20))
    await scorer.start()
    scored = await scorer.score(f"```python\n{code}\n```", {"tests": tests})
    await scorer.close()
    return scored


def test_an_error_of_encoding_is_placed_in_its_text() -> None:
    told = {"raised": "UnicodeDecodeError", "text": "", "made_of": {"tuple": ["utf-8", {"bytes": "ab"}, -33, 1, "?"]}}
    assert isinstance(exception(told), OtherException)
    told["made_of"] = {"tuple": ["utf-8", {"bytes": "ab"}, 0, 1, "?"]}
    assert isinstance(exception(told), UnicodeDecodeError)


@pytest.mark.parametrize("test", ["def f(a, a): pass\nassert f(1, 2)", "def f():\n    from math import *\nassert f()"])
def test_what_no_compiler_takes_is_no_test(test: str) -> None:
    with pytest.raises(TestsError, match="no Python"):
        read_tests({"tests": test}, CodeRewardConfig())
