"""Demonstrations of random play are what a policy with one turn of history sees, and their replies are all actions."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice

import pytest

from rlhf.env.random_play import cartpole, tictactoe
from rlhf.types import Message


def texts(conversation: list[Message]) -> list[str]:
    return [message.content for message in conversation]


def test_a_conversation_is_the_first_board_the_last_turn_and_a_reply() -> None:
    conversations = list(islice(tictactoe(100, 0), 100))
    assert {len(conversation) for conversation in conversations} == {2, 4}
    for conversation in conversations:
        roles = [message.role for message in conversation]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert texts(conversation)[-1] in texts(conversation)[-2]


def test_a_role_never_sees_the_turns_of_the_other() -> None:
    for first, said, board, _ in (texts(c) for c in tictactoe(200, 1) if len(c) == 4):
        assert first.count("x") == 0
        assert said not in board
        assert board.count("o") - board.count("x") == first.count("o")


def test_the_same_seed_gives_the_same_conversations_and_as_many_as_asked() -> None:
    assert list(tictactoe(37, 3)) == list(tictactoe(37, 3))
    assert list(tictactoe(37, 3)) != list(tictactoe(37, 4))
    assert len(list(tictactoe(37, 3))) == 37


@pytest.mark.ecosystem
def test_the_pole_is_four_digits_and_each_push_half_of_the_replies() -> None:
    conversations = [texts(conversation) for conversation in cartpole(1000, 0)]
    assert all(re.fullmatch(r"\d{4}", conversation[-2]) for conversation in conversations)
    pushes = Counter(conversation[-1] for conversation in conversations)
    assert set(pushes) == {"0", "1"}
    assert 400 < pushes["0"] < 600
