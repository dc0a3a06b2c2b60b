"""A conversation is imitated in the chat template's own tokens, whatever its replies hold."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from rlhf.chat.renderer import ChatRenderer
from rlhf.chat.reply_tokens import ReplyEncoder, conversation
from rlhf.chat.templates import arguments_with_tools, check_parts, prompt_ids
from rlhf.errors import ModelError
from rlhf.types import Message, Segment, Task, Tool, ToolCall
from tests.models.templates import APPENDING, FORGETS_THINKING, tokenizer_with

CALLS = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ADD = Tool(name="add", description="Adds.", parameters={"type": "object"}, other={"return": {"type": "integer"}})
CALLED = Message(
    role="assistant",
    content="",
    reasoning_content="I add.",
    tool_calls=(ToolCall(id="", name="add", arguments={"a": 2}),),
)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def imitated(tokenizer: PreTrainedTokenizerBase, segment: Segment) -> list[str]:
    """The texts of the runs of ACTION tokens."""
    runs: list[list[int]] = []
    for token, is_action, before in zip(
        segment.token_ids, segment.action_mask, [False, *segment.action_mask[:-1]], strict=True
    ):
        if is_action and not before:
            runs.append([])
        if is_action:
            runs[-1].append(int(token))
    return [tokenizer.decode(run) for run in runs]


def whole(tokenizer: PreTrainedTokenizerBase, messages: list[Message], tools: Any = ()) -> list[int]:
    arguments = {**arguments_with_tools({}, tools), "add_generation_prompt": False}
    return prompt_ids(tokenizer, messages, arguments)


@pytest.mark.parametrize("template", APPENDING.values(), ids=APPENDING)
@pytest.mark.parametrize("places", [(1, 3), (3,), (1,)])
def test_the_tokens_are_the_templates_and_the_chosen_replies_are_imitated(
    template: str, places: tuple[int, ...]
) -> None:
    tokenizer = tokenizer_with(template)
    messages = [user("2 + 2?"), said("4"), user("3 + 3?"), said("6")]
    segment = conversation(tokenizer, messages, replies=ReplyEncoder(tokenizer), imitated=places)
    rendered = whole(tokenizer, messages[: places[-1] + 1])
    assert rendered[: len(segment.token_ids)] == segment.token_ids.tolist()
    assert imitated(tokenizer, segment) == [f"{messages[place].content}<|im_end|>" for place in places]


def test_tools_calls_and_reasoning_are_rendered_and_imitated() -> None:
    tokenizer = tokenizer_with(CALLS)
    messages = [user("2 + 2?"), CALLED, Message(role="tool", content="4"), said("It is 4.")]
    arguments = arguments_with_tools({}, [ADD])
    segment = conversation(tokenizer, messages, arguments, replies=ReplyEncoder(tokenizer, arguments))
    assert tokenizer.decode(segment.token_ids) + "\n" == tokenizer.decode(whole(tokenizer, messages, [ADD]))
    call = '<call>{"name": "add", "arguments": {"a": 2}}</call>'
    assert imitated(tokenizer, segment) == [f"<think>I add.</think>{call}<|im_end|>", "It is 4.<|im_end|>"]
    assert '"return": {"type": "integer"}' in tokenizer.decode(segment.token_ids)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([user("?"), CALLED], "leaves out or rewrites a reply's reasoning_content, 'I add.'; use a template that does"),
        ([user("?"), said("<think>a</think>b"), user("?"), said("c")], "a reply's content, .*; write replies: last"),
        ([user("?")], "needs an assistant message to imitate"),
    ],
)
def test_a_template_that_changes_a_reply_is_refused(messages: list[Message], message: str) -> None:
    tokenizer = tokenizer_with(FORGETS_THINKING)
    with pytest.raises(ModelError, match=message):
        conversation(tokenizer, messages, replies=ReplyEncoder(tokenizer))


def test_a_template_that_forgets_earlier_thinking_imitates_the_last_reply() -> None:
    tokenizer = tokenizer_with(FORGETS_THINKING)
    messages = [user("?"), said("<think>a</think>b"), user("?"), said("<think>c</think>d")]
    segment = conversation(tokenizer, messages, replies=ReplyEncoder(tokenizer), imitated=[3])
    assert imitated(tokenizer, segment) == ["<think>c</think>d<|im_end|>"]


@pytest.mark.parametrize(
    ("messages", "tools", "message"),
    [
        ([user("?")], [ADD], "the rows have tools, but the chat template ignores them; write tools_column: null"),
        ([user("?"), CALLED, user("?")], [], "the rows have tool_calls, but .*; write them into the content"),
        ([user("?"), said("4"), user("?")], [], None),
    ],
)
def test_what_the_template_does_not_read_is_refused(
    messages: list[Message], tools: list[Tool], message: str | None
) -> None:
    tokenizer = tokenizer_with(FORGETS_THINKING)
    task = Task(id="0", messages=tuple(messages), tools=tuple(tools))
    if message is None:
        assert ChatRenderer(tokenizer).prompt_tokens(task) == len(prompt_ids(tokenizer, messages))
        return
    with pytest.raises(ModelError, match=message):
        ChatRenderer(tokenizer).prompt_tokens(task)


def test_a_template_that_reads_them_is_shown_them() -> None:
    tokenizer = tokenizer_with(CALLS)
    check_parts(tokenizer, [CALLED], [ADD])
    task = Task(id="0", messages=(user("?"),), tools=(ADD,))
    renderer = ChatRenderer(tokenizer)
    assert renderer.prompt_tokens(task) == len(renderer.offering([ADD]).prompt(task.messages).token_ids)
    assert renderer.prompt_tokens(task) > renderer.prompt_tokens(Task(id="0", messages=(user("?"),)))
