"""Mathematics that a reader with the verifier's source scored wrongly: small numbers that equal 0, digits that do not
count, and blanks that hold a worker."""

from __future__ import annotations

import json
import time

from rlhf.reward.math import final_answer, math
from rlhf.reward.numbers_equal import numbers_equal
from rlhf.reward.written_answer import as_formula, undressed
from tests.datasets import GSM8K
from tests.pace import scaled


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
