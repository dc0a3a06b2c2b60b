"""The rules say what they mean."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlhf.errors import NoReference
from rlhf.reward.math import math
from rlhf.reward.rules import exact, regex


@pytest.mark.parametrize(("response", "value"), [("12345", 1), (" 12345\n", 1), ("12345.", 0), ("", 0), ("54321", 0)])
def test_exact_forgives_only_whitespace_around(response: str, value: float) -> None:
    assert exact(response, {"answer": "12345"}) == value


@pytest.mark.parametrize(("response", "value"), [("<think>7</think>\n7", 1), ("<think>7</think>8", 0), ("<think>7", 0)])
def test_exact_reads_nothing_that_is_thought(response: str, value: float) -> None:
    assert exact(response, {"answer": "7"}) == value


@pytest.mark.parametrize("rule", [exact, regex, math])
def test_an_empty_reference_is_none_for_an_empty_reply_would_equal_it(rule: Callable[..., float]) -> None:
    for reply in ("", "<think>7", "7"):
        with pytest.raises(NoReference, match="is empty"):
            rule(reply, {"answer": " ", "pattern": "(.*)"})


@pytest.mark.parametrize(
    ("pattern", "response", "value"),
    [
        (r"<answer>(.*?)</answer>", "<think><answer>7</answer></think><answer>8</answer>", 0),
        (r"<answer>(.*?)</answer>", "<think><answer>7</answer>", 0),
        (r"<answer>(.*?)</answer>", "<think><answer>8</answer></think><answer>7</answer>", 1),
        (r"(?s)^<think>.*</think>\s*<answer>.*</answer>$", "<think>a</think>\n<answer>8</answer>", 1),
        (r"</think>\s*(\d+)", "<think>8</think> 7", 1),
        (r"(?s)(\d+).*$", "<think>7</think>", 0),
        (r"\bthank you\b", "<think>thank you</think>no", 0),
        (r"<answer>(.*?)</answer>", "so <answer> 7 </answer>", 1),
        (r"<answer>(.*?)</answer>", "<answer>8</answer> no, <answer>7</answer>", 1),
        (r"<answer>(.*?)</answer>", "<answer>7</answer> no, <answer>8</answer>", 0),
        (r"<answer>(.*?)</answer>", "7", 0),
        (r"\bthank you\b", "oh, thank you!", 1),
        (r"\bthank you\b", "thanks", 0),
        (r"A(\d)?", "A", 0),
    ],
)
def test_regex_compares_the_group_of_the_last_match(pattern: str, response: str, value: float) -> None:
    assert regex(response, {"answer": "7", "pattern": pattern}) == value


@pytest.mark.parametrize(
    "response",
    [
        "6 * 7 = 41, no.\n#### 42",
        "####42",
        "#### $42.00",
        "#### 42 dollars",
        "#### **42**",
        "#### 42.",
        "#### 41\n#### 42\nnext question: 7",
        "#### \\boxed{42}",
        "#### $\\frac{84}{2}$",
        "so the total is \\boxed{42} dollars",
        "The answer is 42.",
        "the final answer is $42$",
        "I first got 40 but it is 42",
    ],
)
def test_math_finds_the_final_answer_however_it_is_written(response: str) -> None:
    assert math(response, {"answer": "42"}) == 1.0


@pytest.mark.parametrize("response", ["", "no idea", "####", "#### 43", "42 at first\n#### 43", "#### -42", "#### 420"])
def test_math_gives_nothing_for_another_answer_or_none(response: str) -> None:
    assert math(response, {"answer": "42"}) == 0.0


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("1,080", "#### 1080"),
        ("1080", "#### 1,080"),
        ("$1,080", "the answer is \\$1,080"),
        ("0.5", "#### 1/2"),
        ("\\frac{1}{2}", "\\boxed{0.5}"),
        ("-3", "#### -3"),
        ("\\sqrt{8}", "The answer is $2\\sqrt{2}$"),
        ("109,200,000", "#### 109200000"),
        ("$2^{1000}$", "\\boxed{2^{1000}}"),
        ("$2^{10}$", "\\boxed{1024}"),
        ("$9^{9^{9}}$", "\\boxed{9^{9^{9}}}"),
        ("$20!$", "\\boxed{2432902008176640000}"),
        ("\\binom{20}{10}", "\\boxed{184756}"),
        ("$(x+1)^2$", "\\boxed{x^2+2x+1}"),
        ("$(1+x)^{2023}$", "\\boxed{(x+1)^{2023}}"),
        ("$10^{-20}$", "\\boxed{\\frac{1}{10^{20}}}"),
        ("$3^{1/3}$", "\\boxed{\\sqrt[3]{3}}"),
        ("\\{1,2,3\\}", "\\boxed{\\{3,2,1\\}}"),
        ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\boxed{\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}}"),
        ("42", "\\boxed{\\sin^2(x)+\\cos^2(x)+41}"),
        ("\\frac{n^2+n}{2}", "\\boxed{\\frac{n(n+1)}{2}}"),
        ("\\sqrt{12}", "\\boxed{2\\sqrt{3}}"),
        ("55", "\\boxed{\\sum_{i=1}^{10} i}"),
        ("\\int_0^1 x dx", "\\boxed{\\int_0^1 x dx}"),
    ],
)
def test_math_compares_values_not_spellings(answer: str, response: str) -> None:
    assert math(response, {"answer": answer}) == 1.0


def test_math_says_so_when_the_reference_is_no_mathematics() -> None:
    with pytest.raises(NoReference, match="not entirely a mathematical expression"):
        math("#### 42", {"answer": "???"})
