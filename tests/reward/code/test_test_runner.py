"""Tests as datasets write them are run as a test runner would run them, and what nothing would run is no test."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.reward.code import test_runner
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
        (FUNCTIONS + "\ntest_a()\ntest_b()", ["test_a()", "test_b()"]),
        (FUNCTIONS + GUARD + "test_a()\n    test_b()", ["test_a()", "test_b()"]),
        (FUNCTIONS + GUARD + "pytest.main([__file__])", ["test_a()", "test_b()"]),
        (FUNCTIONS + GUARD + "import sys\n    sys.exit(pytest.main())", ["test_a()", "test_b()"]),
        (CLASS.format(base=""), ["TestAdd().test_a()"]),
        (
            CLASS.format(base="(unittest.TestCase)") + "\nunittest.main(exit=False)",
            ["unittest.TestSuite().run(_rlhf_result, debug=True)"],
        ),
        ("sol = Solution()\n" + FUNCTIONS, ["test_a()", "test_b()"]),
        (["def check(c):\n    assert c(1) == 2", "check(add)"], ["check(add)"]),
        (FUNCTIONS.replace("test_a", "test_c") + "\ntry: test_b()\nfinally: pass", ["test_c()", "test_b()"]),
        ("def helper():\n    assert f() == 1\ndef test_all():\n    helper()", ["test_all()"]),
    ],
)
def test_what_is_defined_as_a_test_is_called_once(tests: Any, run: list[str]) -> None:
    assert last_lines(tests) == run


@pytest.mark.parametrize("test", ["assert add(1, {n}) == {n}", "def test_{n}():\n    assert add(0, {n}) == {n}"])
def test_the_tests_of_a_list_are_looked_through_together_and_not_once_for_each(
    test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done for every reply, on the event loop of the trainer."""
    looked, reached_from = [], test_runner.reached_from
    monkeypatch.setattr(test_runner, "reached_from", lambda given: looked.append(1) or reached_from(given))
    assert len(last_lines([test.format(n=n) for n in range(30)])) == 30
    assert len(looked) <= 3


def test_the_entry_point_is_checked_where_there_is_a_check() -> None:
    assert last_lines("def check(c):\n    assert c(1) == 2", entry="add") == ["check(add)"]
    assert last_lines("def test_a():\n    assert add(1) == 2", entry="add") == ["test_a()"]
    assert last_lines("def check(c):\n    assert c(1) == 2", entry="Solution().add") == ["check(Solution().add)"]
    texts = ["def check(c):\n    assert c(1) == 2", "def check(c):\n    assert c(2) == 3"]
    assert last_lines(texts, entry="add") == ["check(add)", "check(add)"]
    assert last_lines("def check(c):\n    assert c([1]) == max([1])", entry="max") == ["check(solution.max)"]


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
        ("def setup_function(): pass\ndef test_a(): assert f(1)", "setup_function needs pytest"),
        ("import unittest\n@unittest.skipIf(f(1), '')\ndef test_a(): assert f(1)", "skipIf leaves open"),
        ("assert (f(1) == 2, 'no')", "holds always"),
        (f"assert f(1) == 0x{'f' * 5000}", "cannot be divided"),
        ("if f and __name__ == '__main__': assert f(1)", "a condition on __name__"),
        ("try:\n    def test_a(): assert f(1)\nfinally: pass", "nothing calls test_a"),
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
        "def test_a():\n    try: assert 6 / add(1, 2) == 2\n    except Exception as e: print(e)",
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


@pytest.mark.engine
async def test_a_function_that_needs_trust_costs_its_own_test_alone() -> None:
    tests = (
        "import sys\ndef test_a(): assert f(1) == 1\ndef test_b(): assert f(2) == 2\ndef test_c(): assert sys.stdout"
    )
    assert (await score("def f(x): return x", tests)).value == pytest.approx(2 / 3)


FROM_A_BASE = """
from unittest import TestCase as Case
class Base(Case):
    by = None
    def test_a(self): self.assertEqual(add(1, self.by), 1 + self.by)
class TestMixedIn:
    def test_b(self): self.assertEqual(add(2, self.by), 2 + self.by)
class TestOne(TestMixedIn, Base):
    by = 1
class TestTwo(Base):
    by = 2
del Base
"""


@pytest.mark.engine
@pytest.mark.parametrize(("code", "share"), [("a + b", 1.0), ("a + min(b, 1)", 2 / 3), ("0", 0.0)])
async def test_what_tests_derive_from_is_no_test_of_its_own(code: str, share: float) -> None:
    assert (await score(f"def add(a, b): return {code}", FROM_A_BASE)).value == pytest.approx(share)


@pytest.mark.engine
async def test_a_test_that_a_try_calls_is_a_test_of_its_own() -> None:
    tests = (
        "def test_a(): assert add(0, 0) == 0\ndef test_b(): assert add(1, 2) == 3\n"
        "try: test_a(); test_b()\nexcept AssertionError as e: print(e)"
    )
    assert (await score("def add(a, b):\n    assert a == 0\n    return 0", tests)).value == 0.5
    assert (await score("def add(a, b): return a + b", tests)).value == 1


def test_a_set_up_that_defines_tests_is_refused() -> None:
    row = {"tests": "assert f(1)", "setup": "def test_a(): assert f(2) == 2"}
    with pytest.raises(TestsError, match="the set-up defines test_a, which asserts"):
        read_tests(row, CodeRewardConfig(setup_column="setup"))


@pytest.mark.engine
async def test_a_class_is_set_up_once_and_its_tests_run_by_name() -> None:
    tests = (
        "import unittest\nclass T(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls): cls.box = Box()\n"
        "    def test_2(self): self.assertEqual(self.box.size(), 2)\n"
        "    def test_1(self):\n        self.box.put(1)\n        self.box.put(2)\n"
        "        self.assertTrue(self.box.size())"
    )
    box = (
        "class Box:\n    def __init__(self): self.n = 0\n    def put(self, x): self.n += 1\n    def size(self): return "
    )
    assert (await score(box + "self.n", tests)).value == 1
    assert (await score(box + "min(self.n, 1)", tests)).value == 0.5


@pytest.mark.engine
async def test_what_tears_a_class_down_is_run_and_what_must_not_be_called_is_not_missed() -> None:
    tests = (
        "import unittest\nclass T(unittest.TestCase):\n    @classmethod\n"
        "    def tearDownClass(cls): assert add(1, 2) == 3\n"
        "    def test_1(self): self.assertTrue(callable(add))\n"
        "def boom(): raise AssertionError\ndef bang(): assert False\nassert add(0, 0) == 0 and boom and bang"
    )
    assert (await score("def add(a, b): return a + b", tests)).value == 1
    assert (await score("def add(a, b): return 0", tests)).value == 0.5


@pytest.mark.engine
async def test_a_method_that_fails_is_torn_down() -> None:
    tests = (
        "import unittest\nclass T(unittest.TestCase):\n{}"
        "    def test_1(self): self.assertEqual(add(1), 1)\n"
        "    def test_2(self):\n        add(2)\n        self.assertEqual(size(), 1)\n"
        "    def test_3(self): self.assertEqual(size(), 0)\n"
    )
    code = "made = []\ndef add(x): made.append(x)\ndef size(): return len(made)\ndef reset(): made.clear()"
    for resets in ("    def tearDown(self): reset()\n", "    def setUp(self): self.addCleanup(reset)\n"):
        assert (await score(code, tests.format(resets))).value == pytest.approx(2 / 3)


async def test_a_test_that_is_nested_too_deeply_is_none() -> None:
    scorer = make_code_scorer(CodeRewardConfig())
    for test in ("if " + "+".join(["f(1)"] * 2000) + ": assert f(1)", "assert f(1)\n" + "+".join(["f(1)"] * 2000)):
        assert (await scorer.score("def f(x): return x", {"tests": test})).detail == "a test is nested too deeply"


MADE = "def same(a, b): assert a == b\ndef test_a(): same(add(0, 0), 0)\n"


@pytest.mark.engine
@pytest.mark.parametrize(
    "tests",
    [
        MADE + "import sys\nif sys.maxsize:\n    def test_b(): same(add(1, 2), 3)",
        MADE + "class TestAll:\n    class TestInner:\n        def test_b(self): same(add(1, 2), 3)",
        MADE + "import unittest\ndef make():\n    def t(self): same(add(1, 2), 3)\n    return t\n"
        "class TestMade(unittest.TestCase): test_b = make()",
        MADE + "test_b = lambda: same(add(1, 2), 3)",
        MADE + "import unittest\nclass Both:\n    def test_b(self): self.assertEqual(add(*self.of), sum(self.of))\n"
        "class TestZero(Both, unittest.TestCase): of = (0, 0)\nbases = [Both, unittest.TestCase]\n"
        "class TestMore(*bases): of = (1, 2)",
    ],
)
async def test_what_decides_something_and_has_not_run_fails_the_last_test(tests: str) -> None:
    for code in ("def add(a, b): return 0", "def add(a, b): return a + b"):
        scored = await score(code, tests)
        assert scored.value < 1
        assert "has never run" in scored.detail


@pytest.mark.engine
async def test_a_main_of_the_tests_own_is_called() -> None:
    main = (
        "def main():\n    if add(1, 2) != 3: raise ValueError\nif __name__ == '__main__': main()\nassert add(0, 0) == 0"
    )
    assert (await score("def add(a, b): return 0", main)).value == 0
    assert (await score("def add(a, b): return a + b", main)).value == 1


def test_what_decides_is_never_taken_from_the_code() -> None:
    with pytest.raises(TestsError, match="use assert_equal, and hold no such names"):
        read_tests({"tests": "assert_equal(add(1, 2), 3)"}, CodeRewardConfig())


@pytest.mark.parametrize("tests", [["f(1)", "print(f(2))"], "def test_a():\n    return f(1) == 1"])
def test_tests_that_nothing_can_fail_are_no_tests(tests: Any) -> None:
    with pytest.raises(TestsError, match="any code that runs would pass"):
        read_tests({"tests": tests}, CodeRewardConfig())


@pytest.mark.parametrize(
    "test",
    [
        "return 1",
        "from x import y\nfrom __future__ import division",
        "def f(a, a): pass\nassert f(1, 2)",
        "def f():\n    from math import *\nassert f()",
    ],
)
def test_what_no_compiler_takes_is_no_test(test: str) -> None:
    with pytest.raises(TestsError, match="no Python"):
        read_tests({"tests": test}, CodeRewardConfig())
