"""A reply has the form, or it has not."""

from __future__ import annotations

import pytest

from rlhf.reward.rules import tagged_blocks

TAGS = ("think", "answer")


@pytest.mark.parametrize(
    "response", ["<think>a</think><answer>b</answer>", " <think>a < b </think>\n\n<answer>\n<b>b</b></answer>\n"]
)
def test_blocks_in_order_with_only_whitespace_beside_them_have_the_form(response: str) -> None:
    assert tagged_blocks(response, {"tags": TAGS, "text_after": False}) == 1.0


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
    assert tagged_blocks(response, {"tags": TAGS, "text_after": False}) == 0.0


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("<think>2 + 2</think>\n\nIt is 4.", 1),
        ("<think>2 + 2</think>\n", 0),
        ("<think> </think>It is 4.", 0),
        ("It is 4.", 0),
        ("<think>2 + 2 is 4.", 0),
        ("<think>a</think>4<think>b</think>5", 0),
        ("so <think>a</think>4", 0),
    ],
)
def test_prose_after_the_thinking_has_the_form_of_r1(response: str, value: float) -> None:
    assert tagged_blocks(response, {"tags": ("think",), "text_after": True}) == value
