"""What an environment says is appended by the model's own template, or the template is refused with the reason."""

from __future__ import annotations

import pytest

from rlhf.chat.increments import Increments
from rlhf.chat.reply_tokens import ReplyEncoder, conversation
from rlhf.errors import ModelError
from rlhf.types import Message
from tests.models.templates import APPENDING, FORGETS_THINKING, NO_SYSTEM_LATER, tokenizer_with

USER, TOOL = Message(role="user", content="and 3+4?"), Message(role="tool", content="7")
END = 2
"""`<|im_end|>`"""


def test_the_newline_after_a_stop_token_belongs_to_the_increment() -> None:
    tokenizer = tokenizer_with(APPENDING["chatml"])
    text = tokenizer.decode(Increments(tokenizer, end=END).after_reply([USER]))
    assert text == "\n<|im_start|>user\nand 3+4?<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_forgets_thinking_is_refused_for_users_and_not_for_tools() -> None:
    increments = Increments(tokenizer_with(FORGETS_THINKING), end=END)
    refused = increments.verdict(["user"])
    assert refused is not None
    assert "rewrites earlier text when a user message follows: '<think>" in refused
    assert "environment.last_n" in refused
    assert increments.verdict(["tool"]) is None
    with pytest.raises(ModelError, match="rewrites earlier text"):
        increments.after_reply([TOOL, USER])


def test_a_role_that_the_template_refuses_is_named() -> None:
    increments = Increments(tokenizer_with(NO_SYSTEM_LATER), end=END)
    assert increments.verdict(["user"]) is None
    with pytest.raises(ModelError, match=r"user, assistant, system: a system message must come first"):
        increments.after_reply([Message(role="system", content="Be brief.")])


def test_a_demonstration_without_a_reply_is_refused() -> None:
    with pytest.raises(ModelError, match="needs an assistant message to imitate"):
        conversation(tokenizer := tokenizer_with(APPENDING["chatml"]), [USER], replies=ReplyEncoder(tokenizer))
