"""Tool calls are read in the model's own format, and what cannot be read is said in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf.chat.tool_calls import FORMATS, check_tool_format, hermes, llama3_json, own_format, with_ids
from rlhf.env.encoding import call_data, dumps
from rlhf.errors import ConfigError
from rlhf.runs.jsonl import JsonlWriter, read_jsonl
from rlhf.types import Message
from tests.rollout.playing import ADD

BAR = "\uff5c"
BEGIN, SEP, END = (f"<{BAR}tool▁{part}{BAR}>" for part in ("call▁begin", "sep", "call▁end"))
CALL = '{"name": "calculator", "arguments": {"expression": "1+2"}}'


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_a_hermes_call_is_read_with_the_text_beside_it() -> None:
    parsed = hermes(f"Let me see. <tool_call>\n{CALL}\n</tool_call>")
    [call] = parsed.calls
    assert (call.name, call.arguments) == ("calculator", {"expression": "1+2"})
    assert (parsed.beside, parsed.problem) == ("Let me see.", None)


def test_ids_are_new_in_the_conversation_and_nine_letters_long_unless_the_policy_gave_one() -> None:
    calls = hermes(f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>").calls
    own = FORMATS["mistral"]('[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcd12345"}]').calls
    conversation: list[Message] = []
    for said in (calls, calls, own, own):
        conversation.append(Message(role="assistant", content="", tool_calls=with_ids(said, conversation)))
    ids = [call.id for message in conversation for call in message.tool_calls]
    assert ids == ["call00000", "call00001", "call00002", "call00003", "abcd12345", "call00005"]


def test_arguments_that_are_json_as_text_are_read() -> None:
    [call] = hermes('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>').calls
    assert call.arguments == {"x": 1}


def test_a_call_without_arguments_has_none() -> None:
    [call] = hermes('<tool_call>{"name": "now"}</tool_call>').calls
    assert call.arguments == {}


@pytest.mark.parametrize("text", ["7", "", "{", "the tag is tool_call", "</tool_call>"])
def test_a_reply_without_a_call_is_plain_text(text: str) -> None:
    parsed = hermes(text)
    assert (parsed.calls, parsed.problem) == ((), None)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{'name': 'f'}", "invalid JSON"),
        ("", "invalid JSON"),
        ("[" * 100_000, "invalid JSON"),
        ("[1]", '"name" must be'),
        ('{"name": 3}', '"name" must be'),
        ('{"name": "", "arguments": {}}', '"name" must be'),
        ('[{"name": "f"}]', '"name" must be'),
        ('{"name": "f", "arguments": [1]}', "must be a JSON object"),
        ('{"name": "f", "arguments": "x"}', "is a string that is not JSON"),
        ('{"name": "f", "arguments": null}', "must be a JSON object"),
        ('{"name": "f", "arguments": {"x": NaN}}', "invalid JSON"),
        ('{"name": "f", "arguments": {"x": -Infinity}}', "invalid JSON"),
        ('{"name": "f", "arguments": {"x": 1e999}}', "invalid JSON"),
        (r'{"name": "f", "arguments": {"x": "\ud800"}}', "invalid JSON"),
        (r'{"name": "\ud800", "arguments": {}}', "invalid JSON"),
        ('{"name": "f", "arguments": "{\\"x\\": NaN}"}', "is a string that is not JSON"),
        (f'{{"name": "f", "arguments": {{"x": {nested(300)}}}}}', "nested too deeply"),
    ],
)
def test_a_malformed_call_is_told_why(body: str, why: str) -> None:
    parsed = hermes(f"<tool_call>{body}</tool_call>")
    assert parsed.calls == ()
    assert parsed.problem is not None
    assert parsed.problem.startswith("malformed tool call: ")
    assert why in parsed.problem


def test_a_call_that_other_text_follows_before_its_end_is_malformed_and_spoils_the_others() -> None:
    parsed = hermes(f"<tool_call>{CALL}</tool_call><tool_call>{CALL} and so on")
    assert parsed.calls == ()
    assert parsed.problem == "malformed tool call: </tool_call> is missing"


DRAFT = f"<tool_call>{CALL}</tool_call>"


@pytest.mark.parametrize(
    ("text", "thinking", "calls"),
    [
        (f"<think>{DRAFT}</think>4", False, 0),
        (f"I would write {DRAFT}</think>4", False, 0),
        (f"I would write {DRAFT}</think>4", True, 0),
        (f"<think>{DRAFT}</think>{DRAFT}", False, 1),
        (f"<think>a</think>b{DRAFT}</think>4", False, 0),
        (f"<think>{DRAFT}, or not", False, 0),
        (f"{DRAFT}, or not", True, 0),
        (f"<think>{DRAFT} no, another: {DRAFT}\n{DRAFT}\n", False, 2),
        (f"Sure. <think>{DRAFT} hm", False, 0),
        (f"[THINK]{DRAFT}[/THINK]4", False, 0),
        ("<think>a <tool_call> b </think>4", False, 0),
        ('<think>a</think><tool_call>{"name": "f", "arguments": {"x": "</think>"}}</tool_call>', False, 1),
        ('<tool_call>{"name": "f", "arguments": {"x": "<think> </think>"}}</tool_call>', False, 1),
        ('<tool_call>{"name": "f", "arguments": {"x": "<think>"}}</tool_call>', False, 1),
    ],
)
def test_only_what_is_said_after_thinking_is_a_call(text: str, thinking: bool, calls: int) -> None:
    parsed = hermes(text, thinking=thinking)
    assert (len(parsed.calls), parsed.problem) == (calls, None)


def test_thinking_stays_in_the_text_beside_a_call() -> None:
    assert hermes(f"<think>a</think>So: {DRAFT}").beside == "<think>a</think>So:"


@pytest.mark.parametrize(
    ("name", "text", "calls", "problem"),
    [
        ("llama3_json", '{"type": "function", "name": "add", "parameters": {"x": 1}}', [{"x": 1}], None),
        ("llama3_json", '{"name": "add", "arguments": {"x": 1}}<|eot_id|>', [{"x": 1}], None),
        ("llama3_json", '{"name": "add", "parameters": {"x": 1}} {"name": "Alice"}', [], "unexpected JSON"),
        ("llama3_json", '{"name": "drop", "parameters": {"x": 1}}', [], None),
        ("llama3_json", '{"name": "add"}', [], None),
        ("llama3_json", '{"name": "add", "parameters": "x"}', [], "a string that is not JSON"),
        ("llama3_json", '<|python_tag|>{"name": "drop", "parameters": {}}', [], "expected a call of an offered tool"),
        ("llama3_json", '[{"name": "add"}, 1]', [], None),
        ("llama3_json", '{"name": "Alice", "age": ', [], None),
        ("mistral", '[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"x": 1}', [{"x": 1}], None),
        ("mistral", '[TOOL_CALLS]add{"x": "[TOOL_CALLS]"}', [{"x": "[TOOL_CALLS]"}], None),
        ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"x": 1}}', [], "invalid JSON"),
        ("mistral", '[TOOL_CALLS]drop[ARGS]{"x": 1}', [], "there is no tool 'drop'; use one of add"),
        ("mistral", "[TOOL_CALLS]add", [], "expected a call after"),
        ("deepseek_v31", f'{BEGIN}add{SEP}{{\n  "x": 1\n}}{END}', [{"x": 1}], None),
        ("deepseek_v31", f'{BEGIN}add{SEP}{{"x": 1}}', [], "is missing"),
        ("deepseek_v31", f"{BEGIN}add", [], "expected a call after"),
        ("deepseek_v3", f'{BEGIN}function{SEP}add\n```json\n{{\n"x": 1}}\n```{END}', [{"x": 1}], None),
        ("deepseek_v3", f"{BEGIN}function{SEP}drop\n```json\n{{}}\n```{END}", [], "there is no tool"),
        ("glm4_0414", 'add\n{"x": 1}', [{"x": 1}], None),
        ("glm4_0414", 'Alice\n{"x": 1}', [], None),
        ("glm4_0414", 'add\n{"x": ', [], "invalid JSON"),
        ("harmony", ' to=functions.add<|channel|>commentary json<|message|>{"x": 1}', [{"x": 1}], None),
        ("harmony", "<|channel|>commentary to=browser.open<|message|>{}", [], "there is no tool"),
        ("harmony", "<|channel|>commentary to=functions.add<|message|>x = 1", [], "invalid JSON"),
        ("harmony", "<|channel|>analysis<|message|>I could write to=functions.add", [], None),
    ],
)
def test_the_formats_of_todays_models_are_read_strictly(
    name: str, text: str, calls: list[dict[str, Any]], problem: str | None
) -> None:
    parsed = FORMATS[name](text, [ADD])
    assert [dict(call.arguments) for call in parsed.calls] == calls
    assert (problem or "") in (parsed.problem or "")
    assert (parsed.problem is None) == (problem is None)


@pytest.mark.parametrize("arguments", [r'{"x": "\ud83d\ude00", "y": [1e308, -0.5]}', f'{{"x": {nested(90)}}}'])
def test_the_calls_that_are_read_can_be_written_everywhere(arguments: str, tmp_path: Path) -> None:
    [call] = hermes(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>').calls
    lines = JsonlWriter(tmp_path / "lines")
    lines.write([call_data(call)])
    lines.close()
    [line] = read_jsonl(tmp_path / "lines")
    assert line == json.loads(dumps(call_data(call))) == {"id": "", "name": "f", "arguments": call.arguments}


@pytest.mark.parametrize("mark", ["", "<|python_tag|>"])
def test_a_llama3_call_is_the_whole_reply(mark: str) -> None:
    [call] = llama3_json(f'{mark}{{"name": "calculator", "parameters": {{"expression": "1+2"}}}}\n').calls
    assert (call.name, call.arguments) == ("calculator", {"expression": "1+2"})


def test_a_llama3_reply_that_begins_like_a_call_and_is_none_is_malformed() -> None:
    assert "invalid JSON" in str(llama3_json('{"name": "f", ').problem)
    assert "invalid JSON" in str(llama3_json("<|python_tag|>print(1)").problem)
    assert llama3_json("The answer is {3}.").problem is None


def test_a_format_of_ones_own_is_imported_and_reads_what_is_said_after_thinking() -> None:
    assert own_format("rlhf.chat.tool_calls:llama3_json", "tool_format") is llama3_json
    always = own_format("tests.rollout.playing:always", "tool_format")
    [call] = always("<think>a</think>b", [ADD]).calls
    assert call.arguments == {"text": "b"}
    with pytest.raises(ConfigError, match=r"agent\.tool_format is nowhere:format, which cannot be imported"):
        check_tool_format("nowhere:format", "agent.tool_format")
