"""Answers of several values: each belongs to its name, and numbers are no condition."""

from __future__ import annotations

import pytest

from rlhf.reward.math import math


@pytest.mark.parametrize(
    ("reference", "wrong", "right"),
    [
        (
            "x=2, y=-1",
            [
                "x=-1, y=2",
                "(-1,2)",
                "-1,2",
                "\\{-1, 2\\}",
                "x=2",
                "2",
                "a=2, b=-1",
                "x=2 \\text{ or } x=-1",
                "x=2, y=-1, z=0",
                "(y,x)=(2,-1)",
            ],
            ["x=2,y=-1", "y=-1, x=2", "(2,-1)", "2, -1", "x=2 \\text{ and } y=-1", "(x,y)=(2,-1)", "(y,x)=(-1,2)"],
        ),
        ("x=2, y=-1, z=4", ["(4,-1,2)", "4,2,-1", "(2,-1)"], ["(2,-1,4)", "z=4, x=2, y=-1"]),
        ("(x,y)=(2,-1)", ["(-1,2)", "x=-1, y=2"], ["(2,-1)", "y=-1, x=2"]),
        ("a_1=2, a_2=\\frac12", ["a_1=0.5, a_2=2", "(0.5,2)"], ["a_2=0.5, a_1=2", "(2,0.5)"]),
        ("(2,-1)", ["x=-1, y=2"], ["x=2, y=-1"]),
        ("x=1 \\text{ or } x=2", ["x=1", "x=1 \\text{ or } x=3"], ["x=2 \\text{ or } x=1", "2, 1", "\\{1,2\\}"]),
        ("\\{1,2\\}", ["x=1, y=3"], ["2, 1", "x=1 \\text{ or } x=2"]),
        ("1<x<2", ["\\{1,2\\}", "1, 2", "1 \\text{ and } 2", "x=1, y=2", "1\\le x<2"], ["x\\in(1,2)", "(1,2)"]),
        ("x\\in(1,2)", ["\\{1,2\\}", "1, 2"], ["(1,2)"]),
        ("x \\ge 2", ["2", "x > 2"], ["[2,\\infty)", "2 \\le x"]),
    ],
)
def test_values_belong_to_their_names(reference: str, wrong: list[str], right: list[str]) -> None:
    scores = {reply: math(f"So \\boxed{{{reply}}}.", {"answer": reference}) for reply in [*wrong, *right]}
    assert scores == dict.fromkeys(wrong, 0.0) | dict.fromkeys(right, 1.0)


@pytest.mark.parametrize(
    ("reference", "wrong", "right"),
    [
        ("25", ["1/4\\%"], ["25", "100/4"]),
        ("0.0025", ["25", "0.25"], ["1/4\\%", "1/4%", "\\frac14\\%"]),
        ("10", ["7"], ["5[2]", "5\\left[2\\right]"]),
        ("\\frac16", ["0.1", "0.16", "0.\\overline{16}"], ["0.1\\overline{6}", "0.1\\bar 6"]),
        ("0.\\overline{36}", ["0.36", "\\frac{36}{100}"], ["\\frac{4}{11}"]),
        ("-1.\\overline{3}", ["-1.3", "1.\\overline{3}"], ["-\\frac43"]),
        ("3", ["3!!", "3.0.0", "3 million"], ["3"]),
    ],
)
def test_numbers_are_read_as_they_are_written(reference: str, wrong: list[str], right: list[str]) -> None:
    scores = {reply: math(f"So \\boxed{{{reply}}}.", {"answer": reference}) for reply in [*wrong, *right]}
    assert scores == dict.fromkeys(wrong, 0.0) | dict.fromkeys(right, 1.0)
