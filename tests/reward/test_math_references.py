"""What a reader with the verifier's source scored wrongly in an hour: references that are read in part, small numbers
that equal 0, right answers that equal nothing, and blanks that hold a worker."""

from __future__ import annotations

import json
import time

import pytest

from rlhf.errors import NoReference
from rlhf.reward.math import final_answer, math
from rlhf.reward.numbers_equal import numbers_equal
from rlhf.reward.written_answer import as_formula, undressed
from tests.datasets import GSM8K
from tests.pace import scaled

IN_PART = [
    "x \\equiv 3 \\pmod 7",
    "x \\equiv 3 \\pmod{7}",
    "3 \\bmod 7",
    "1:2:3",
    "3 \\text{ hours } 20 \\text{ minutes}",
    "3 hours 20 minutes",
    "3 ft 5 in",
    "3 \\text{ feet } 5 \\text{ inches}",
    "\\langle 1, 2, 3\\rangle",
    "1, 2, \\ldots, 10",
    "\\{1,2,3,\\ldots,10\\}",
    "2, 4, 6, 8, ...",
    "\\lg 2",
    "P(X=2)=\\frac{1}{4}",
    "60^\\circ 30'",
    "5 6",
    "x+5_{8}",
    "x\\to 0",
    "3}+{4",
]


@pytest.mark.parametrize("reference", IN_PART)
def test_a_reference_that_is_read_in_part_is_none(reference: str) -> None:
    with pytest.raises(NoReference, match="is not entirely a mathematical expression"):
        math(f"\\boxed{{{reference}}}", {"answer": reference})


@pytest.mark.parametrize(
    "box", ["3 \\text{ hours } 20 \\text{ minutes}", "3 \\pmod 7", "3\\text{ million}", "3, \\ldots"]
)
def test_a_part_of_what_is_in_the_box_is_no_answer(box: str) -> None:
    assert math(f"Not 3: \\boxed{{{box}}}", {"answer": "3"}) == 0.0


@pytest.mark.parametrize(
    ("reference", "wrong", "right"),
    [
        ("3+2\\mathrm{i}", ["5", "3-2i", "3"], ["3+2i", "3+2\\mathrm{i}", "2i+3"]),
        ("2\\mathrm{e}", ["2"], ["2e", "e+e"]),
        ("2\\text{x}", ["2"], ["2x"]),
        ("x+2t", ["x+2"], ["2t+x"]),
        ("2\\,000", ["0", "2", "3\\,000"], ["2000", "2,000", "2{,}000", "2\\ 000", "2 000"]),
        ("(10,\\,300)", ["10300"], ["(10,300)"]),
        ("101_2", ["101", "101_3", "111_2"], ["101_2", "101_{2}"]),
        ("1 1/2", ["1", "\\frac12"], ["1\\frac12", "1.5", "\\frac32"]),
        ("10^{-8}", ["0.0", "0", "10^{-9}"], ["1e-8", "0.00000001", "\\frac{1}{10^8}"]),
        ("6.63\\times10^{-34}", ["0.0", "1.6\\times10^{-19}"], ["6.63\\cdot10^{-34}", "6.63e-34"]),
        ("\\frac{1}{2^{30}}", ["0.0", "0.0000001"], ["2^{-30}", "\\frac{1}{1073741824}"]),
        ("\\frac{1}{\\binom{52}{5}}", ["0.0"], ["\\frac{1}{2598960}"]),
        ("0.0000001", ["0.0000004", "0.0"], ["10^{-7}"]),
        ("\\frac13", ["0.333", "0.34"], ["0.333333", "0.33333333"]),
        ("5000", ["5"], ["5e3", "5E3", "5\\times10^3"]),
        ("5", ["0.05", "6"], ["€5", "+5", "5,", "5~\\mathrm{km}", "\\text{5 apples}", "\\text{Answer: } 5", "5\\%"]),
        ("-1", ["1", "i"], ["i^2", "i\\cdot i"]),
        ("\\frac34\\text{ square miles}", ["3", "4"], ["\\frac34", "0.75", "\\frac{3}{4} mile"]),
        ("6+9\\pi\\mbox{ cm}^2", ["6", "15"], ["6+9\\pi"]),
        ("x \\ne 2", ["x \\le 5", "2"], ["x\\neq 2"]),
        ("\\binom{5}{2}", ["5"], ["10"]),
        ("\\text{(B)}", ["A"], ["B", "(B)"]),
        ("4(5)", ["9"], ["20", "(4)(5)"]),
        ("10-2(3)", ["5"], ["4"]),
        ("\\log_2(8)", ["4"], ["3"]),
        ("(2)\\frac12", ["2.5"], ["1"]),
        ("1\\frac12", ["0.5"], ["1.5"]),
        ("\\sqrt{2+\\sqrt3}", ["1.93"], ["\\frac{\\sqrt6+\\sqrt2}{2}", "1.931852"]),
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
        ("25", ["1/4\\%"], ["25", "100/4"]),
        ("0.0025", ["25", "0.25"], ["1/4\\%", "1/4%", "\\frac14\\%"]),
        ("10", ["7"], ["5[2]", "5\\left[2\\right]"]),
        ("\\frac16", ["0.1", "0.16", "0.\\overline{16}"], ["0.1\\overline{6}", "0.1\\bar 6"]),
        ("0.\\overline{36}", ["0.36", "\\frac{36}{100}"], ["\\frac{4}{11}"]),
        ("-1.\\overline{3}", ["-1.3", "1.\\overline{3}"], ["-\\frac43"]),
        ("3", ["3!!", "3.0.0", "3 million"], ["3"]),
    ],
)
def test_wrong_answers_are_worth_0_and_right_ones_1(reference: str, wrong: list[str], right: list[str]) -> None:
    scores = {reply: math(f"So it is \\boxed{{{reply}}}.", {"answer": reference}) for reply in [*wrong, *right]}
    assert scores == dict.fromkeys(wrong, 0.0) | dict.fromkeys(right, 1.0)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        *(("\\boxed {42}", 1), ("\\fbox{42}", 1), ("\\boxed{\n42\n}", 1), ("\\boxed{41}, no: \\boxed{42}", 1)),
        *(("\\boxed{42}\n\nCheck: 6*7 = 42, and 41 + 1.", 1), ("\\boxed{}, so 42", 0), ("#### so \\boxed{42}", 1)),
    ],
)
def test_the_last_box_is_the_answer(reply: str, value: float) -> None:
    assert math(reply, {"answer": "42"}) == value


@pytest.mark.parametrize("reply", ["Answer: B", "**Answer: B**", "The answer is B.", "The correct option is (B)."])
def test_a_letter_is_an_answer(reply: str) -> None:
    assert math(reply, {"answer": "B"}) == 1.0
    assert math(reply, {"answer": "A"}) == 0.0


def test_every_number_of_a_reference_counts() -> None:
    references = ["x^2+3x-10", "\\frac{7}{12}", "\\log_2 3", "(3,4]", "\\{2,5\\}", "2\\sqrt{15}", "\\sum_{k=1}^{5} k^2"]
    for reference in references:
        for place, letter in enumerate(reference):
            if letter.isdigit():
                other = reference[:place] + str((int(letter) + 4) % 10) + reference[place + 1 :]
                assert math(f"\\boxed{{{other}}}", {"answer": reference}) == 0.0, other


def test_decimals_are_compared_to_six_digits_and_exact_numbers_exactly() -> None:
    [tiny], [smaller], [decimal] = (final_answer(f"\\boxed{{{n}}}") for n in ("10^{-30}", "10^{-31}", "0.0"))
    assert not numbers_equal(tiny, smaller)
    assert not numbers_equal(tiny, decimal)
    assert numbers_equal(tiny, final_answer("\\boxed{1e-30}")[0])
    assert numbers_equal(final_answer("\\boxed{\\sqrt{3+2\\sqrt2}}")[0], final_answer("\\boxed{1+\\sqrt2}")[0])
    assert not numbers_equal(final_answer("\\boxed{1000000}")[0], final_answer("\\boxed{1000000.4}")[0])


def test_texts_of_blanks_and_of_halves_of_patterns_hold_no_worker() -> None:
    pieces = [
        " ",
        "\n",
        "\\text{",
        "\\text{a",
        "1 ",
        "1,111",
        "12:",
        "\\,",
        "{,}",
        "a ",
        "_",
        "\\boxed {",
        "answer ",
        "1",
    ]
    began = time.process_time()
    for piece in pieces:
        for text in ("$ {}$", "{}", "\\boxed{{{}}}", "#### {}"):
            assert math(text.format(piece * (40_000 // len(piece))), {"answer": "42"}) == 0.0
        as_formula(undressed(piece * (2000 // len(piece))))
    assert time.process_time() - began < scaled(10)


def test_2000_answers_of_gsm8k_are_right_however_they_are_stated() -> None:
    lines = "".join((GSM8K / f"{split}.jsonl").read_text() for split in ("train", "test")).splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) > 2000
    wrong = []
    for row in rows:
        answer = row["answer"].partition("####")[2].strip()
        for reply in (row["answer"], f"It is \\boxed{{{answer}}}.", f"\\boxed{{\\${answer} \\text{{ dollars}}}}"):
            if math(reply, {"answer": answer}) != 1.0:
                wrong.append((answer, reply))
    assert wrong == []
