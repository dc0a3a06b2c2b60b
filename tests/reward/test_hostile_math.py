"""Mathematics that is written to be scored: infinity that equals everything, references that are read by halves, and
formulas that hold a worker."""

from __future__ import annotations

import time

import pytest

from rlhf.config import build
from rlhf.errors import NoReference
from rlhf.reward.config import RewardConfig
from rlhf.reward.expression_size import TooLarge, check_reply, check_size
from rlhf.reward.math import final_answer, math
from rlhf.reward.process import ScorerPool
from rlhf.reward.reward import IN_WORKERS, make_reward
from rlhf.reward.written_answer import NUMBER, undressed
from rlhf.types import Scored, Unscored
from tests.pace import scaled
from tests.reward.asked import TASK, replies, score_text

ENDLESS = [
    *(
        "\\infty^{2}",
        "\\infty^\\infty",
        "2\\infty",
        "\\infty^{2}+1",
        "(2\\infty)^2",
        "\\sqrt{\\infty}",
        "\\sin(\\infty)",
    ),
    *("\\frac{1}{0}", "(\\frac{1}{0})^2", "\\frac{0}{0}", "\\{1, 2\\infty\\}", "\\sum_{i=1}^{\\infty} \\frac{1}{i^2}"),
]


@pytest.mark.parametrize("answer", ENDLESS)
def test_arithmetic_that_holds_infinity_equals_no_number(answer: str) -> None:
    [found] = final_answer(f"\\boxed{{{answer}}}")[:1]
    with pytest.raises(TooLarge):
        check_size(found)
    assert {math(f"\\boxed{{{answer}}}", {"answer": number}) for number in ("1", "42", "\\frac12", "x+1")} == {0.0}


@pytest.mark.parametrize("answer", ["\\infty", "-\\infty", "(-\\infty,3]", "x=\\infty"])
def test_infinity_alone_and_intervals_up_to_it_are_answers(answer: str) -> None:
    check_size(final_answer(f"\\boxed{{{answer}}}")[0])
    assert math(f"\\boxed{{{answer}}}", {"answer": answer}) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "1,08",
        "5 6",
        "five",
        "",
        "5 +",
        "5 x",
        "1e5",
        "3 pi",
        "2 xy",
        "5 x^2",
        "5 x/y",
        "5 million",
        "1 1/2",
        "2x",
        "4²",
    ],
)
def test_what_is_more_or_less_than_a_number_is_none(text: str) -> None:
    assert not NUMBER.fullmatch(undressed(text))


def test_a_reference_too_large_to_be_read_is_none() -> None:
    with pytest.raises(NoReference, match="too large to parse"):
        math("\\boxed{1}", {"answer": "\\frac12" + "9" * 3000})


BOMBS = [
    "\\boxed{9^{9^{9^{9}}}}",
    "#### 9^9^9^9",
    "\\boxed{10^{10^{10}}}",
    "\\boxed{\\frac{1}{9^{9^{9}}}}",
    "\\boxed{2^{-2^{40}}}",
    "\\boxed{1000000!}",
    "\\boxed{100!!!}",
    "\\boxed{(10^9)!}",
    "\\boxed{\\binom{10^9}{5 \\cdot 10^8}}",
    "\\boxed{\\sum_{i=1}^{10^9} i^{i}}",
    "\\boxed{\\prod_{n=1}^{10^7} n}",
    "\\boxed{\\sin(9^{9^9})}",
    "\\boxed{7^{7^{7}} \\mod 10}",
    "\\boxed{(x+1)^{100000}}",
    "\\boxed{(1+x)^{200}(1+y)^{200}}",
    "\\boxed{\\gcd(2^{99999999},3^{99999999})}",
    "\\boxed{" + "9" * 100_000 + "}",
    "\\boxed{" + "(" * 3000 + "1" + ")" * 3000 + "}",
    "\\boxed{\\{" + ",".join(map(str, range(3000))) + "\\}}",
    "\\boxed{\\begin{pmatrix}" + "\\\\".join(["&".join("1" * 60)] * 60) + "\\end{pmatrix}}",
]
SLOW = [
    "\\sin(" * 50 + "x" + ")" * 50,
    "\\int_0^{\\infty} \\frac{x^{30}\\sin(x)}{1+x^{50}+\\sqrt{x}} dx",
    "\\int \\sin(\\sin(\\sin(x^5+\\cos(x)))) dx",
    "\\int_0^1 \\frac{1}{1+x^{97}} dx",
    "\\sum_{i=1}^{\\infty} \\frac{\\sin(i)}{i^{1.5}}",
    "\\sum_{i=1}^{2000}\\sum_{j=1}^{2000} \\frac{1}{ij+x}",
    "\\det\\begin{pmatrix}" + "\\\\".join("&".join(f"x_{i}{j}" for i in range(8)) for j in range(8)) + "\\end{pmatrix}",
    "\\cup".join(f"(\\sqrt{{{i}}},\\sqrt{{{i + 1}}})" for i in range(20)),
    "\\Gamma(\\frac{1}{3})^{9999}",
    "x_{" * 58 + "1" + "}" * 58,
]
UNENDED = [
    "\\[" * 25000,
    "\\(" * 25000,
    "therefore, the final answer is: $" * 3000,
    ("final answer is: $" + "y" * 300) * 60,
]


@pytest.mark.waits
async def test_what_is_too_large_to_evaluate_slow_to_compare_or_long_to_read_holds_no_worker() -> None:
    pool = ScorerPool("rlhf.reward.math:math", 1, scaled(5))
    try:
        await pool.start()
        for reply in ["\\boxed{1}", *BOMBS, *(f"\\boxed{{{formula}}}" for formula in SLOW), *UNENDED]:
            assert await score_text(pool, reply, {"answer": "42"}) == Scored(value=0.0), reply[:60]
    finally:
        await pool.close()


def test_a_reply_with_many_formulas_that_end_is_read() -> None:
    began = time.process_time()
    check_reply("\\[ x \\] and \\( y \\), so the answer is $1$. " * 5000)
    assert time.process_time() - began < 1


@pytest.mark.waits
async def test_a_worker_that_wants_more_memory_than_it_has_raises() -> None:
    pool = ScorerPool("tests.reward.faulty_scorers:misbehave", 1, scaled(5), memory_bytes=2**30)
    try:
        hoard = await score_text(pool, "hoard", {})
        assert isinstance(hoard, Unscored)
        assert (hoard.kind, hoard.detail.startswith("MemoryError:")) == ("raised", True)
    finally:
        await pool.close()


@pytest.mark.waits
async def test_workers_of_rules_have_a_bound_and_those_of_your_own_functions_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = "tests.reward.faulty_scorers:memory_bound"
    monkeypatch.setitem(IN_WORKERS, "math", told)
    bounds = []
    for config in ({"kind": "math"}, {"kind": "function", "function": told}):
        reward = make_reward(build(RewardConfig, config))
        try:
            [score] = await reward(TASK, replies("42"))
        finally:
            await reward.close()
        bounds.append(score.value if isinstance(score, Scored) else None)
    assert bounds == [2.0 * 2**30, -1.0]
