"""Conversations in the shapes that people have them in become the same messages, or are refused by name."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from rlhf.config import build
from rlhf.data.config import DatasetConfig
from rlhf.data.demonstrations import Demonstration, demonstration_from_row
from rlhf.data.rows import task_from_row
from rlhf.errors import DataError
from rlhf.types import Message, Task, Tool, ToolCall

ASKED, SAID, AGAIN = "2 + 2?", "4", "And 3 + 3?"


def one(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def config(**values: Any) -> DatasetConfig:
    return build(DatasetConfig, {"path": "rows.jsonl", "answer_column": None, "prompt_column": "chat", **values})


def task(chat: Any, row: dict[str, Any] | None = None, **values: Any) -> Task:
    return task_from_row(config(**values), {"chat": chat, **(row or {})}, "0", "rows.jsonl, row 7")


def shown(row: dict[str, Any], **values: Any) -> Demonstration:
    return demonstration_from_row(config(**values), row, "rows.jsonl, row 7")


MESSAGES = [one("system", "Add."), one("user", ASKED), one("assistant", SAID), one("user", AGAIN)]
SHAREGPT = [
    {"from": role, "value": said["content"]}
    for role, said in zip(("system", "human", "gpt", "Human "), MESSAGES, strict=True)
]
SHAPES = {
    "messages": MESSAGES,
    "ShareGPT": SHAREGPT,
    "JSON in a cell": json.dumps(MESSAGES),
    "a list of Python's in a cell": str(MESSAGES),
    "content in parts": [one(m["role"], [{"type": "text", "text": m["content"]}]) for m in MESSAGES],
    "bot and empty keys": [one("bot" if m["role"] == "assistant" else m["role"], m["content"], tool_calls=None)
                           for m in MESSAGES],
    "empty keys": [one(m["role"], m["content"], images=[], weight=1, train=True, prefix=False) for m in MESSAGES],
}  # fmt: skip


@pytest.mark.parametrize("chat", SHAPES.values(), ids=SHAPES)
def test_every_shape_is_the_same_conversation(chat: Any) -> None:
    roles = ("system", "user", "assistant", "user")
    texts = ("Add.", ASKED, SAID, AGAIN)
    assert task(chat).messages == tuple(map(lambda role, text: Message(role=role, content=text), roles, texts))


@pytest.mark.parametrize("end", ["", "\n\nAssistant:"])
def test_a_transcript_is_a_conversation(end: str) -> None:
    asked = task(f"\n\nHuman: {ASKED}\n\nAssistant: {SAID}\n\nHuman: {AGAIN}{end}").messages
    assert asked == task(MESSAGES[1:]).messages


def test_an_input_beside_an_instruction_is_never_left_out() -> None:
    row, settings = {"instruction": "Add.", "input": "", "reply": SAID}, {"prompt_column": "instruction"}
    assert task(None, row, **settings).messages == (Message(role="user", content="Add."),)
    for read in (partial(task, None), shown):
        with pytest.raises(DataError, match=r"row 7 has an 'input' in addition to its 'instruction', .*; join them"):
            read(row | {"input": "2, 2"}, response_column="reply", **settings)


@pytest.mark.parametrize("text", ["[1, 2]", "[INST] hi", "{'role': 'user'}", "[{1}]", "[]", "[{'a': 1}]"])
def test_a_text_that_is_no_conversation_stays_a_text(text: str) -> None:
    assert task(text).messages == (Message(role="user", content=text),)


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 0.50}'}}
CALLED = [
    one("user", ASKED),
    one("assistant", None, tool_calls=[CALL], reasoning_content="I add."),
    one("tool", "4", tool_call_id="c1"),
]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS, "return": {}}}


@pytest.mark.parametrize("call", [CALL, {"id": "c1", "name": "add", "arguments": {"a": 2, "b": 0.5}}])
def test_tool_calls_reasoning_and_ids_of_calls_are_carried(call: dict[str, Any]) -> None:
    asked, called, heard = task([CALLED[0], {**CALLED[1], "tool_calls": [call]}, CALLED[2]]).messages
    assert called == Message(
        role="assistant",
        content="",
        tool_calls=(ToolCall(id="c1", name="add", arguments={"a": 2, "b": 0.5}),),
        reasoning_content="I add.",
    )
    assert (asked.content, heard.tool_call_id) == (ASKED, "c1")


@pytest.mark.parametrize("tools", [[ADD], json.dumps([ADD]), [json.dumps(ADD)], [ADD["function"]]])
def test_the_tools_of_a_row_are_carried(tools: Any) -> None:
    add = Tool(name="add", description="Adds.", parameters=PARAMETERS, other={"return": {}})
    assert task(ASKED, {"tools": tools}).tools == (add,)
    assert shown({"chat": ASKED, "tools": tools, "reply": SAID}, response_column="reply").tools == (add,)
    assert task(ASKED, {"tools": tools}, tools_column=None).tools == ()


@pytest.mark.parametrize(
    ("chat", "settings", "message"),
    [
        ([one("narrator", "x")], {}, "message 1 of column 'chat' has the role 'narrator'; the roles are human, gpt"),
        ([one("user", ASKED, function_call=ADD)], {}, "of column 'chat' has 'function_call', which is not supported"),
        ([one("user", [{"type": "video_url"}])], {}, "message 1 of column 'chat' has a part of type 'video_url', and"),
        ([one("assistant", "", tool_calls=[{"name": "add"}]), one("user", ASKED)], {}, "a tool call without a name"),
        ([one("user", None)], {}, "must have text as content, but reads None"),
        ("[{'role': 'user' 'content': 1}]", {}, "looks like a conversation but is neither JSON nor a Python list"),
        ({"messages": MESSAGES}, {}, "but holds an object .*; write prompt_column: chat.messages"),
        (["a", "b"], {}, "must be text or a list of messages .*; write prompt_column: chat.0"),
        (MESSAGES, {"system_prompt": "Brief."}, "has one system message in its .* and another in system_prompt"),
        ([one("user", ASKED, thinking="x")], {}, "has 'thinking', .* name it reasoning_content"),
        ([one("user", ASKED), one("assistant", SAID, weight=0)], {}, "has 'weight', which is not supported"),
        ([one("user", ASKED), one("assistant", SAID, trainable=False)], {}, "has 'trainable', which is not supported"),
        ([one("user", ASKED), one("assistant", SAID, loss_weight=0.0)], {}, "has 'loss_weight', which is not"),
        ([one("user", ASKED), one("assistant", SAID, prefix=True)], {}, "has 'prefix', which is not supported"),
        (MESSAGES[:3], {}, "column 'chat' ends with the assistant's reply, .* kind: sft learns from whole conv"),
        ([one("user", " ")], {}, "the question in column 'chat' is blank"),
        ([one("system", "Add.")], {}, "column 'chat' ends with the system message, so it has no question"),
        (CALLED, {"prompt_suffix": "!"}, "does not end with a question that prompt_suffix could follow"),
        ("", {}, "the question in column 'chat' is blank"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_is_refused_by_name_with_the_row(
    chat: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=f"^rows.jsonl, row 7.*{message}"):
        task(chat, **settings)


@pytest.mark.parametrize("column", ["audio", "video"])
def test_a_row_with_a_column_of_what_is_neither_text_nor_image_is_refused(column: str) -> None:
    assert task(ASKED, {column: []}).messages
    with pytest.raises(
        DataError, match=f"^rows.jsonl, row 7 has '{column}', and models are trained on text and images alone"
    ):
        task(ASKED, {column: ["1.png"]})


def test_a_column_with_a_system_message_comes_first() -> None:
    rule = Message(role="system", content="Add.")
    assert task(ASKED, {"system": "Add."}).messages == (rule, Message(role="user", content=ASKED))
    assert shown({"chat": MESSAGES[1:3], "system": "Add."}).messages[0] == rule
    assert len(task(ASKED, {"system": "Add."}, system_column=None).messages) == 1
    for chat, settings in ((ASKED, {"system_prompt": "Brief."}), (MESSAGES, {})):
        with pytest.raises(DataError, match=r"has (a|one) system message in .*; remove one of them"):
            task(chat, {"system": "Add."}, **settings)


def test_names_of_tools_are_no_tools() -> None:
    with pytest.raises(DataError, match=r"column 'tools' holds tools as functions .* write tools_column: null"):
        task(ASKED, {"tools": ["calculator"]})


WHOLE = [*MESSAGES, one("assistant", "6")]


@pytest.mark.parametrize(("replies", "places"), [("every", (2, 4)), ("last", (4,))])
def test_a_whole_conversation_is_imitated_in_every_reply_or_in_the_last(replies: str, places: tuple[int, ...]) -> None:
    made = shown({"chat": WHOLE}, replies=replies)
    assert (len(made.messages), made.replies, made.where) == (5, places, "rows.jsonl, row 7")
    assert made.prompt == made.messages[: places[0]]


@pytest.mark.parametrize("reply", [SAID, [one("assistant", SAID)], json.dumps([one("assistant", SAID)])])
@pytest.mark.parametrize("asked", [ASKED, [one("user", ASKED)]])
def test_a_prompt_and_its_completion_are_texts_or_messages(asked: Any, reply: Any) -> None:
    made = shown({"chat": asked, "completion": reply}, response_column="completion")
    assert made.messages == (Message(role="user", content=ASKED), Message(role="assistant", content=SAID))
    assert made.replies == (1,)


def test_what_precedes_the_first_question_and_follows_the_last_reply_is_not_imitated() -> None:
    greeted = shown({"chat": [one("assistant", "Hello."), *WHOLE[1:], one("user", "Thanks.")]})
    assert ([said.content for said in greeted.messages][-1], greeted.replies) == ("6", (2, 4))


def test_replies_before_the_completion_are_not_imitated() -> None:
    row = {"chat": MESSAGES, "completion": [one("assistant", "5"), one("user", "Sure?"), one("assistant", "6")]}
    assert shown(row, response_column="completion").replies == (4, 6)


@pytest.mark.parametrize(
    ("row", "settings", "message"),
    [
        ({"prompt": "?", "completion": "!"}, {}, "no column .*; write prompt_column: prompt, response_column: c"),
        ({"input": "?", "output": "!"}, {}, "no column 'chat' .*; write prompt_column: input, response_column: output"),
        ({"conversations": WHOLE}, {}, "no column 'chat' .*; write prompt_column: conversations$"),
        ({"chat": ASKED, "completion": SAID}, {}, "there is no reply to imitate; write response_column: completion"),
        ({"chat": ASKED, "c": {"text": SAID}}, {"response_column": "c"}, "an object .*; write response_column: c.text"),
        ({"chat": ASKED, "c": [SAID]}, {"response_column": "c"}, "must be text or .*; write response_column: c.0"),
        ({"chat": ASKED, "c": WHOLE}, {"response_column": "c"}, "holds a whole conversation; write prompt_column: c"),
        ({"chat": ASKED, "c": MESSAGES[2:]}, {"response_column": "c"}, "must end with the assistant's reply"),
        ({"chat": ASKED, "c": " "}, {"response_column": "c"}, "a reply to imitate is blank"),
        ({"chat": WHOLE}, {"prompt_suffix": "!"}, "does not end with a question that prompt_suffix could follow"),
        ({"chat": WHOLE[2:3]}, {}, "no reply follows a question, so there is none to imitate"),
    ],
)  # fmt: skip
def test_what_cannot_be_imitated_is_refused_with_the_line_to_write(
    row: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=f"^rows.jsonl, row 7.*{message}"):
        shown(row, **settings)


@pytest.mark.parametrize(
    ("row", "lines"),
    [
        (
            {"data_source": "gsm8k", "prompt": [one("user", ASKED)], "reward_model": {"ground_truth": "4"}},
            "write prompt_column: prompt, answer_column: reward_model.ground_truth",
        ),
        ({"input": ASKED, "label": "4"}, "write prompt_column: input, answer_column: label"),
        ({"problem": ASKED, "solution": "4"}, "write prompt_column: problem, answer_column: solution"),
        ({"question": ASKED, "x": 1}, "name the right one with answer_column, or write answer_column: null if"),
    ],
)
def test_the_lines_that_read_a_known_shape_are_said_at_once(row: dict[str, Any], lines: str) -> None:
    with pytest.raises(DataError, match=lines):
        task_from_row(DatasetConfig(path="rows.jsonl"), row, "0", "rows.jsonl, row 1")
