"""Demonstrations of random play are what a policy without history sees, and their replies are all actions."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from recipes.tasks.random_play import gymnasium, tictactoe
from rlhf.types import Message


def texts(conversation: list[Message]) -> list[str]:
    return [message.content for message in conversation]


def test_a_conversation_is_a_board_and_a_free_square() -> None:
    conversations = list(tictactoe(200, 0))
    assert {tuple(message.role for message in one) for one in conversations} == {("user", "assistant")}
    assert all(square in board for board, square in map(texts, conversations))
    assert {board.count("x") + board.count("o") for board, _ in map(texts, conversations)} == set(range(9))


def test_both_roles_are_shown_their_own_marks_as_x() -> None:
    boards = [texts(conversation)[0] for conversation in tictactoe(200, 1)]
    assert {board.count("o") - board.count("x") for board in boards} == {0, 1}


@pytest.mark.ecosystem
def test_the_pole_is_four_digits_and_each_push_half_of_the_replies() -> None:
    bins = [[-2.4, 2.4], [-2.5, 2.5], [-0.21, 0.21], [-2.5, 2.5]]
    conversations = [texts(conversation) for conversation in gymnasium(1000, 0, id="CartPole-v1", bins=bins)]
    assert all(re.fullmatch(r"\d{4}", shown) for shown, _ in conversations)
    pushes = Counter(push for _, push in conversations)
    assert set(pushes) == {"0", "1"}
    assert 400 < pushes["0"] < 600
