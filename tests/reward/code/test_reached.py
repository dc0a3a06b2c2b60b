"""What of tests code is shown that passes some of them: what those run, and nothing that the others expect."""

from __future__ import annotations

import ast

from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.unit_tests import Asserts, reached_by, read_tests


def shown(text: str, *passed: bool, setup: str = "") -> str:
    row = {"tests": text, "setup": setup}
    tests = read_tests(row, CodeRewardConfig(setup_column="setup"))
    assert isinstance(tests, Asserts)
    texts = reached_by(tests, passed)
    assert len(texts) == len(passed)
    return "\n".join(texts)


def test_a_method_of_a_class_of_tests_is_shown_where_it_passes() -> None:
    text = """
import unittest
class T(unittest.TestCase):
    cases = [1]
    def setUp(self): self.value = 3
    def test_a(self): self.check(self.value, 6)
    def test_b(self): self.assertEqual(f(7), 14)
    def check(self, x, y): self.assertEqual(f(x), y)
"""
    found = shown(text, True, False)
    assert "def test_a" in found
    assert "def check" in found
    assert "def setUp" in found
    assert "test_b" not in found
    assert "14" not in found
    found = shown(text, False, True)
    assert "def test_b" in found
    assert "_rlhf_result = " in found
    assert "14" in found
    assert "test_a" not in found


def test_a_function_is_shown_where_a_test_that_passes_runs_it() -> None:
    text = """
import math
def reference(x): return 2 * x
def helper(x): return f(x)
class Case:
    def pair(self): return (5, 10)
    def run(self): return f(5)
assert helper(2) == 4
wanted = 77
assert f(6) == reference(6)
assert Case().run() == 10
"""
    found = shown(text, True, False, False)
    assert "def helper" in found
    assert "77" not in found
    found = shown(text, False, True, False)
    assert "def reference" in found
    assert "77" in found
    assert "helper" not in found
    assert "def pair" in shown(text, False, False, True)  # a class that is none of tests is one


def test_what_a_decorator_or_a_class_may_keep_is_shown_where_it_is_run() -> None:
    text = """
RUN = []
class Case:
    def __init_subclass__(cls): RUN.append(cls)
@RUN.append
def check_missing(): return f(1) == 2
class First(Case):
    def run(self): return f(3) == 4
assert RUN[0]() and RUN[1]().run()
assert f(4) == 5
"""
    found = shown(text, True, False)
    assert "def check_missing" in found
    assert "class First" in found
    assert "f(4)" not in found


def test_a_class_of_which_nothing_is_left_is_still_one() -> None:
    found = shown("class TestA:\n    def test_a(self): assert f(1) == 2\nassert f(TestA) == 3", True, False)
    assert ast.parse(found).body
    assert "class TestA" in found
    assert "test_a" not in found


def test_a_text_that_cannot_be_written_anew_is_not_shown() -> None:
    long = f"def test(): return f(0x{'9' * 5000})"
    assert reached_by(Asserts(texts=(f"{long}\nassert f(1) == 2", "test()")), (False, True)) == ("", "test()")
    assert reached_by(Asserts(texts=(f"{long}\ntest()", "assert f(2) == 3")), (True, False)) == (f"{long}\ntest()", "")
