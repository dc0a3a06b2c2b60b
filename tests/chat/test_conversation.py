"""Messages that are put together never have two of a user in a row where they meet."""

from __future__ import annotations

from rlhf.chat.conversation import joined
from rlhf.types import Message

SYSTEM, ANSWER = Message(role="system", content="s"), Message(role="assistant", content="a")
FIRST, SECOND = Message(role="user", content="1"), Message(role="user", content="2")


def test_two_user_messages_that_meet_become_one() -> None:
    both = Message(role="user", content="1\n\n2")
    assert joined([SYSTEM, FIRST], [SECOND, ANSWER]) == (SYSTEM, both, ANSWER)


def test_anything_else_is_put_in_a_row() -> None:
    assert joined([FIRST, ANSWER], [SECOND]) == (FIRST, ANSWER, SECOND)
    assert joined([FIRST], [ANSWER]) == (FIRST, ANSWER)
    assert joined([], [FIRST]) == joined([FIRST], []) == (FIRST,)
