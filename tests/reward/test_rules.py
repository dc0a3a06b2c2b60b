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


def test_math_says_so_when_the_reference_is_no_mathematics() -> None:
    with pytest.raises(NoReference, match="not entirely a mathematical expression"):
        math("#### 42", {"answer": "???"})
