"""Which assignments of tests are constants."""

from __future__ import annotations

import ast

import pytest

from rlhf.reward.code.constants import constants_of


@pytest.mark.parametrize(
    ("text", "constants"),
    [
        ("tol = 1e-6\nclose = lambda a, b: abs(a - b) < tol", ["tol = 1e-06", "close = lambda a, b: abs(a - b) < tol"]),
        (
            "import math\nfrom datetime import date\nd = date(1, 1, 1)\na, b = math.pi, d",
            ["d = date(1, 1, 1)", "a, b = (math.pi, d)"],
        ),
        (
            "cases = [str(i) for i in range(3)]\nn: int = len(cases)",
            ["cases = [str(i) for i in range(3)]", "n: int = len(cases)"],
        ),
        ("g = lambda: add(1, 2)", ["g = lambda: add(1, 2)"]),
        ("g = lambda: add(1, 2)\nx = g()", ["g = lambda: add(1, 2)"]),
        ("g = lambda x=add(1, 2): x", []),
        ("x = [*map(lambda x: add(x, x), [1])]", []),
        ("x = (lambda: add(1, 2))()", []),
        ("x = add(1, 2)\ny = [x]", []),
        ("x = 1\nx = add(1, 2)", []),
        ("x = 1\nx += 1", []),
        ("x = []\nx.append(1)", []),
        ("x = {}\nx['a'] = 1", []),
        ("x = [1]\nsort(x)", []),
        ("x = [1]\ndel x[0]", []),
        ("x = 0\ndef count():\n    global x\n    x += 1", []),
        ("for x in [1]: pass\ny = x", []),
        ("x = open('x')\ny = (z := 3)", []),
        ("from solution import add\nx = add\nimport solution\ny = solution.N", []),
        ("seen = []\ndef test_a(): seen.append(add(1, 2))", ["seen = []"]),
        ("if add(1, 2): x = 1", []),
    ],
)
def test_constants_are_what_tests_set_without_the_code(text: str, constants: list[str]) -> None:
    ((*found,),) = constants_of([ast.parse(text)])
    assert [ast.unparse(one) for one in found] == constants


def test_a_name_is_a_constant_to_all_tests_or_to_none() -> None:
    first, second = (ast.parse(text) for text in ("x = 1\ny = 2", "x = add(1, 2)\nz = y"))
    assert [[ast.unparse(one) for one in of_text] for of_text in constants_of([first, second])] == [
        ["y = 2"],
        ["z = y"],
    ]
