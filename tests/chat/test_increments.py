"""What an environment says is appended by the model's own template, or the template is refused with the reason."""

from __future__ import annotations

import pytest

from rlhf.chat.increments import Increments
from rlhf.chat.reply_tokens import ReplyEncoder, conversation
from rlhf.chat.templates import arguments_with_tools, prompt_ids
from rlhf.errors import ModelError
from rlhf.types import Message, Tool
from tests.models.templates import APPENDING, ENDS_OTHERWISE, FORGETS_THINKING, NO_SYSTEM_LATER, tokenizer_with

USER, TOOL = Message(role="user", content="and 3+4?"), Message(role="tool", content="7")
END = 2
"""`<|im_end|>`"""
TOOLS = (Tool(name="calculator", description="Calculates.", parameters={"type": "object"}),)
HEARD = {"user": [USER], "tool": [TOOL], "two tools": [TOOL, TOOL], "tool and user": [TOOL, USER], "nothing": []}


@pytest.mark.parametrize("heard", HEARD.values(), ids=HEARD)
@pytest.mark.parametrize("template", APPENDING.values(), ids=APPENDING)
def test_prompt_reply_and_increment_are_what_the_template_renders_for_the_whole(
    template: str, heard: list[Message]
) -> None:
    tokenizer, arguments = tokenizer_with(template), arguments_with_tools({}, TOOLS)
    asked, reply = [Message(role="user", content="1+2?")], "I say 3"
    grown = prompt_ids(tokenizer, asked, arguments)
    grown += [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]
    grown += Increments(tokenizer, arguments, end=END).after_reply(heard)
    whole = prompt_ids(tokenizer, [*asked, Message(role="assistant", content=reply), *heard], arguments)
    assert grown == whole


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


def test_a_template_that_writes_something_else_behind_a_reply_than_its_end_is_refused() -> None:
    with pytest.raises(ModelError, match=r"continues with '<\|pad\|>.*but a reply ends at '<\|im_end\|>'"):
        Increments(tokenizer_with(ENDS_OTHERWISE), end=END).after_reply([USER])


def test_a_role_that_the_template_refuses_is_named() -> None:
    increments = Increments(tokenizer_with(NO_SYSTEM_LATER), end=END)
    assert increments.verdict(["user"]) is None
    with pytest.raises(ModelError, match=r"user, assistant, system: a system message must come first"):
        increments.after_reply([Message(role="system", content="Be brief.")])


def test_a_demonstration_without_a_reply_is_refused() -> None:
    with pytest.raises(ModelError, match="needs an assistant message to imitate"):
        conversation(tokenizer := tokenizer_with(APPENDING["chatml"]), [USER], replies=ReplyEncoder(tokenizer))
