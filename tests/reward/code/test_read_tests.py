"""Rows in the shapes of public data sets take a form and are scored as they say; rows that say nothing are unusable."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.read_tests import CASE, PythonTests, TestsError, read_tests
from rlhf.reward.code.scoring import CodeScorer
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.types import Scored

ROWS = [json.loads(line) for line in (Path(__file__).parent / "rows.jsonl").read_text().splitlines()]
CHECKED = {"tests_column": "test", "entry_point_column": "entry_point", "code_prefix_column": "prompt"}
STYLES: dict[str, tuple[str, dict[str, Any]]] = {
    "mbpp": ("values", {"tests_column": "test_list", "setup_column": "test_setup_code"}),
    "mbpp_sanitized": ("values", {"tests_column": "test_list", "setup_column": "test_imports"}),
    "humaneval": ("values", CHECKED),
    "apps_stdin": ("stdin", {"tests_column": "input_output"}),
    "apps_call": ("values", {"tests_column": "input_output"}),
    "code_contests": ("stdin", {"tests_column": "public_tests"}),
    "livecodebench_stdin": ("stdin", {"tests_column": "public_test_cases"}),
    "kodcode_v1": ("values", {"tests_column": "test"}),
    "kodcode_pytest_raises": ("values", {"tests_column": "test_code"}),
    "acecode": ("values", {"tests_column": "test_cases"}),
    "eurus2_stdin": ("stdin", {"tests_column": "reward_model.ground_truth"}),
    "verification_info_stdin": ("stdin", {"tests_column": "verification_info.test_cases"}),
    "verification_info_pytext": ("stdin", {"tests_column": "verification_info.test_cases"}),
    "synthetic2": ("values", {"tests_column": "verification_info.ground_truth"}),
    "rstar_coder": ("stdin", {"tests_column": "inputs"}),
    "deepcoder_primeintellect": ("stdin", {}),
    "deepcoder_lcb": ("values", {}),
    "leetcode_dataset": ("values", CHECKED),
    "bigcodebench": ("values", {"tests_column": "test"}),
    "pairs_none_expected": ("stdin", {}),
    "pairs_whitespace": ("stdin", {}),
    "pairs_float": ("stdin", {}),
    "asserts_with_message": ("values", {}),
    "asserts_print_in_solution": ("values", {}),
}
DEFAULT = CodeRewardConfig()


@pytest.mark.engine
async def test_every_style_takes_its_form_and_tells_right_from_wrong() -> None:
    """`score: all`: some of the wrong replies pass some tests."""
    runner = Sandbox(queue=Queue(runs=2), python=sys.executable)  # it has pytest
    await runner.start()
    found = {}
    for style in ROWS:
        name, row = style["dataset_style"], style["row"]
        scorer = CodeScorer(CodeRewardConfig(score="all", **STYLES[name][1]), runner)
        scores = [await scorer.score(style[reply], row) for reply in ("right_reply", "wrong_reply")]
        details = [score.detail for score in scores if isinstance(score, Scored)]
        form = {detail.partition("(")[2].partition(")")[0] for detail in details}.pop()
        found[name] = (form, [score.value for score in scores if isinstance(score, Scored)])
        print(f"{name:<28}{form:<10}{found[name][1]}")
    await runner.close()
    assert found == {name: (form, [1.0, 0.0]) for name, (form, _) in STYLES.items()}


SUM = ("2\n1 2", "3")


@pytest.mark.parametrize(
    ("column", "row", "pairs"),
    [
        pytest.param("inputs", {"inputs": '["2\\n1 2"]', "outputs": '["3"]', "func_name": None}, [SUM], id="rStar"),
        pytest.param("t", {"t": {"inputs": [["2", "1 2"]], "outputs": [["3"]]}}, [SUM], id="lists of lines"),
        pytest.param("public_tests", {"public_tests": {"input": ["2\n1 2"], "output": ["3"]}}, [SUM], id="contests"),
        pytest.param("v.truth", {"v": json.dumps({"truth": json.dumps({"inputs": ["2\n1 2"], "outputs": ["3"]})})},
                     [SUM], id="SYNTHETIC-2"),
    ],
)  # fmt: skip
def test_pairs_are_read_from_the_shapes_of_data_sets(column: str, row: dict[str, Any], pairs: object) -> None:
    assert read_tests(row, CodeRewardConfig(tests_column=column)) == pairs


def test_calls_of_two_columns_name_their_class() -> None:
    row = {"inputs": [[1, 2]], "outputs": [3], "func_name": "add", "class_name": "Solution"}
    read = read_tests(row, CodeRewardConfig(tests_column="inputs"))
    assert isinstance(read, PythonTests)
    assert "Solution().add(*" in read.steps[0][0]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"tests": {"ground_truth": "x", "style": "rule"}}, "but has ground_truth, style"),
        ({"tests": [{"stdin": "1", "stdout": "2"}]}, "but has stdin, stdout"),
        ({"tests": {"input": "1"}}, "but has input"),
        ({"prompt": "?", "public_tests": []}, "its columns are prompt, public_tests"),
        ({"tests": "eJxrYJnqyAABPbbR1UqZeQWlJUpWCkpG"}, "compressed"),
    ],
)
def test_what_is_no_test_is_refused_by_the_names_that_are_there(row: dict[str, Any], told: str) -> None:
    with pytest.raises(TestsError, match=told):
        read_tests(row, DEFAULT)


def steps_of(tests: object, **about: Any) -> list[tuple[str, bool]]:
    read = read_tests({"tests": tests, **about}, DEFAULT)
    assert isinstance(read, PythonTests)
    return list(read.steps)


def test_a_text_is_cut_into_tests_and_a_list_has_one_in_each_text() -> None:
    text = "import math\nx = f(1)\nassert x == 1\nfor y in (2, 3):\n    assert f(y) == y\nprint('end')"
    assert steps_of(text) == [
        ("import math", False),
        ("x = f(1)", False),
        ("assert x == 1", True),
        ("for y in (2, 3):\n    assert f(y) == y", True),
        ("print('end')", False),
    ]
    assert steps_of(["import math", text, "x = (\nf(2)); assert x"]) == [
        ("import math", False),
        (text, True),
        ("x = (\nf(2)); assert x", True),
    ]


def test_what_is_defined_as_a_test_is_called() -> None:
    text = (
        "import unittest\nfrom solution import f\ndef test_a(): assert f(1)\n"
        "class TestB:\n    def test_b(self): assert f(2)\n"
        "class C(unittest.TestCase):\n    def test_c(self): self.assertTrue(f(3))\n    def helper(self): pass\n"
        "if __name__ == '__main__':\n    unittest.main()\n"
    )
    *definitions, first, second, third = steps_of(text)
    assert not any(is_test or "unittest.main" in step for step, is_test in definitions)
    assert [first, second, third] == [
        ("test_a()", True),
        ("TestB().test_b()", True),
        (CASE.format("C", "test_c"), True),
    ]
    called = "def check(g):\n    assert g(1) == 2\ncheck(f)"
    assert steps_of(called) == [(called.removesuffix("\ncheck(f)"), False), ("check(f)", True)]


@pytest.mark.parametrize(
    "value",
    [
        [{"input": "1", "output": "2"}],
        {"input": "1", "output": "2"},
        '{"inputs": ["1"], "outputs": ["2"]}',
        {"input": ["1"], "output": ["2"]},
        "[{'fn_name': None, 'type': 'stdin_stdout', 'input': '1', 'output': '2'}]",
        {"inputs": ["1"], "outputs": ["2"], "fn_name": None},
    ],
)
def test_pairs_are_read_in_many_shapes(value: Any) -> None:
    assert read_tests({"a": {"b": value}}, CodeRewardConfig(tests_column="a.b")) == [("1", "2")]


@pytest.mark.parametrize(
    ("value", "call"),
    [
        ({"fn_name": "f", "inputs": [[1, [2]]], "outputs": [[3]]}, "f(*_json.loads('[1, [2]]'))"),
        ([{"fn_name": "f", "input": [1, 2], "output": 3}], "f(*_json.loads('[1, 2]'))"),
        ([{"fn_name": "f", "type": "function_call", "input": [1, 2], "output": 3}], "f(*_json.loads('[1, 2]'))"),
        ([{"testtype": "functional", "metadata": {"func_name": "f"}, "input": "[1]\n2", "output": "3"}],
         "f(*_json.loads('[[1], 2]'))"),
        ([{"testtype": "functional", "input": "1", "output": "3"}], "g(*_json.loads('[1]'))"),
    ],
)  # fmt: skip
def test_calls_with_results_are_read_in_many_shapes(value: Any, call: str) -> None:
    ((text, is_test),) = steps_of(value, metadata='{"func_name": "g"}')
    assert is_test
    assert f"_answer, _wanted = {call}, _json.loads(" in text


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        (None, "no tests in column 'tests'"),
        ([], "no tests"),
        ("", "no tests"),
        ("assert (", "not valid Python"),
        (["assert ("], "not valid Python"),
        (3, "not int"),
        ({"inputs": ["1"], "outputs": []}, "lists of equal length"),
        ([{"input": "1"}], "a mapping needs input and output"),
        ([{"input": "1", "output": 2}], "as text"),
        ([{"testtype": "functional", "input": "1", "output": "2"}], "do not name the function"),
        ([{"fn_name": "f", "input": "x", "output": "2"}], "JSON"),
        ([{"fn_name": "f", "input": "1", "output": "2"}, {"input": "1", "output": "2"}], "pairs of one function"),
        ({"inputs": [""], "outputs": ["é" * (1 << 20)]}, "1048576 bytes"),
        ("f(1)", "nothing in the tests asserts"),
        ("def test_it(): f(1)", "nothing in the tests asserts"),
        ("assert (f(1) == 2, 'no')", "assertion is always true"),
        ("def check(g): assert g(1) == 2", "nothing calls check"),
        ("assert True", "never use the code"),
        ("assert " + "(" * 900 + "f(1)" + ")" * 900, "not valid Python|nested too deeply"),
    ],
)
def test_a_row_without_usable_tests_says_why(tests: Any, words: str) -> None:
    with pytest.raises(TestsError, match=words):
        read_tests({"tests": tests}, DEFAULT)


def test_names_come_from_the_code_only_where_they_must() -> None:
    def names(tests: str, **settings: Any) -> tuple[str, ...]:
        row = {"tests": tests, "entry": "f", "prompt": "def helper(x): return x\ndef f(x): ..."}
        read = read_tests(row, CodeRewardConfig(**settings))
        assert isinstance(read, PythonTests)
        return read.names

    assert names("assert sorted(add(1, 2)) == poly(3)") == ("poly", "add")
    assert names("from solution import add as plus\nassert plus(1, 2) == 3") == ("plus",)
    assert names("def mine(): return 1\nassert f(mine()) == 1") == ("f",)
    assert names("assert f(Node(1)) == 1", entry_point_column="entry", names=("Node",)) == ("f", "Node")
    tests = "def check(g): assert helper(g(1)) == 1"
    assert names(tests, entry_point_column="entry", code_prefix_column="prompt") == ("f",)
    read = read_tests({"tests": "assert sum([1]) == 2"}, DEFAULT)
    assert isinstance(read, PythonTests)
    assert (read.form, read.names) == ("script", ("sum",))
