"""What a reply thinks is not what it says."""

from __future__ import annotations

import pytest

from rlhf.chat.thinking import after_thinking, begun_thinking


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("5", "5"),
        ("<think>5</think>4", "4"),
        ("5</think>4", "4"),
        ("<think>5", ""),
        ("<think>5</think>", ""),
        ("<think>6</think>5<think>4</think>3", "3"),
        ("<think>6</think>5<think>4", ""),
        ("[THINK]5[/THINK]4", "4"),
        ("<thinking>5</thinking>4", "4"),
        ("a < b > c", "a < b > c"),
        ("<think>" * 20_000, ""),
        ("it begins with `<think>`", "it begins with `<think>`"),
        ("<think>5 '</think>' 6</think>4", "4"),
    ],
)
def test_only_what_follows_the_last_thinking_is_said(reply: str, said: str) -> None:
    assert after_thinking(reply) == said


@pytest.mark.parametrize(
    ("header", "begun"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("<|Assistant|><think>", "<think>"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ""),
        ("<|im_start|>assistant\n", ""),
        ("is <think> a tag?<|im_end|>\n<|im_start|>assistant\n", ""),
    ],
)
def test_a_header_that_ends_with_thinking_begins_the_reply(header: str, begun: str) -> None:
    assert begun_thinking(header) == begun
