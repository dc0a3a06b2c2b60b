"""A reply has the form, or it has not."""

from __future__ import annotations

import pytest

from rlhf.reward.rules import tagged_blocks

TAGS = ("think", "answer")


@pytest.mark.parametrize(
    "response", ["<think>a</think><answer>b</answer>", " <think>a < b </think>\n\n<answer>\n<b>b</b></answer>\n"]
)
def test_blocks_in_order_with_only_whitespace_beside_them_have_the_form(response: str) -> None:
    assert tagged_blocks(response, {"tags": TAGS}) == 1.0


@pytest.mark.parametrize(
    "response",
    [
        "",
        "<think></think><answer></answer>",
        "<think>a</think><answer> \n</answer>",
        "<answer>b</answer><think>a</think>",
        "<think>a</think>",
        "<think>a</think><answer>b",
        "well, <think>a</think><answer>b</answer>",
        "<think>a</think> so <answer>b</answer>",
        "<think>a</think><answer>b</answer> and more",
        "<think>a</think><answer>b</answer><answer>c</answer>",
        "<think><answer>b</answer></think><answer>c</answer>",
        "<think>a<answer>b</think></answer>",
        "<think>" * 50_000 + "a" + "</think>" * 50_000,
        "<THINK>a</THINK><ANSWER>b</ANSWER>",
    ],
)
def test_everything_else_has_not(response: str) -> None:
    assert tagged_blocks(response, {"tags": TAGS}) == 0.0
