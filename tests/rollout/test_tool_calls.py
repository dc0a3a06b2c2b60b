"""Tool calls are read in the model's own format, and what cannot be read is said in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf.env.encoding import call_data, dumps
from rlhf.errors import ConfigError
from rlhf.rollout.tool_calls import hermes, llama3_json, plain_text, tool_format
from rlhf.runs.jsonl import JsonlWriter, read_jsonl

CALL = '{"name": "calculator", "arguments": {"expression": "1+2"}}'


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_a_hermes_call_is_read_with_the_text_beside_it() -> None:
    spoken = hermes(f"Let me see. <tool_call>\n{CALL}\n</tool_call>")
    [call] = spoken.calls
    assert (call.name, call.arguments) == ("calculator", {"expression": "1+2"})
    assert (spoken.beside, spoken.problem) == ("Let me see.", None)


def test_several_calls_of_a_reply_have_ids_of_their_own() -> None:
    spoken = hermes(f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>")
    assert len({call.id for call in spoken.calls}) == 2


def test_arguments_that_are_json_as_text_are_read() -> None:
    [call] = hermes('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>').calls
    assert call.arguments == {"x": 1}


def test_a_call_without_arguments_has_none() -> None:
    [call] = hermes('<tool_call>{"name": "now"}</tool_call>').calls
    assert call.arguments == {}


@pytest.mark.parametrize("text", ["7", "", "{", "the tag is tool_call", "</tool_call>"])
def test_a_reply_without_a_call_is_plain_text(text: str) -> None:
    spoken = hermes(text)
    assert (spoken.calls, spoken.problem) == ((), None)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{'name': 'f'}", "it is not JSON"),
        ("", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1]", 'needs a "name"'),
        ('{"name": 3}', 'needs a "name"'),
        ('{"name": "f", "arguments": [1]}', "must be a JSON object"),
        ('{"name": "f", "arguments": "x"}', "are text that is not JSON"),
        ('{"name": "f", "arguments": null}', "must be a JSON object"),
        ('{"name": "f", "arguments": {"x": NaN}}', "it is not JSON"),
        ('{"name": "f", "arguments": {"x": -Infinity}}', "it is not JSON"),
        ('{"name": "f", "arguments": {"x": 1e999}}', "it is not JSON"),
        (r'{"name": "f", "arguments": {"x": "\ud800"}}', "it is not JSON"),
        (r'{"name": "\ud800", "arguments": {}}', "it is not JSON"),
        ('{"name": "f", "arguments": "{\\"x\\": NaN}"}', "are text that is not JSON"),
        (f'{{"name": "f", "arguments": {{"x": {nested(300)}}}}}', "nested too deeply"),
    ],
)
def test_a_malformed_call_is_told_why(body: str, why: str) -> None:
    spoken = hermes(f"<tool_call>{body}</tool_call>")
    assert spoken.calls == ()
    assert spoken.problem is not None
    assert spoken.problem.startswith("malformed tool call: ")
    assert why in spoken.problem


def test_a_call_that_is_not_closed_is_malformed_and_spoils_the_others() -> None:
    spoken = hermes(f"<tool_call>{CALL}</tool_call><tool_call>{CALL}")
    assert spoken.calls == ()
    assert spoken.problem == "malformed tool call: </tool_call> is missing"


@pytest.mark.parametrize("arguments", [r'{"x": "\ud83d\ude00", "y": [1e308, -0.5]}', f'{{"x": {nested(90)}}}'])
def test_the_calls_that_are_read_can_be_written_everywhere(arguments: str, tmp_path: Path) -> None:
    [call] = hermes(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>').calls
    lines = JsonlWriter(tmp_path / "lines")
    lines.write([call_data(call)])
    lines.close()
    [line] = read_jsonl(tmp_path / "lines")
    assert line == json.loads(dumps(call_data(call))) == {"id": "call_0", "name": "f", "arguments": call.arguments}


@pytest.mark.parametrize("mark", ["", "<|python_tag|>"])
def test_a_llama3_call_is_the_whole_reply(mark: str) -> None:
    [call] = llama3_json(f'{mark}{{"name": "calculator", "parameters": {{"expression": "1+2"}}}}\n').calls
    assert (call.name, call.arguments) == ("calculator", {"expression": "1+2"})


def test_a_llama3_reply_that_begins_like_a_call_and_is_none_is_malformed() -> None:
    assert "not JSON" in str(llama3_json('{"name": "f", ').problem)
    assert "not JSON" in str(llama3_json("<|python_tag|>print(1)").problem)
    assert llama3_json("The answer is {3}.").problem is None


def test_a_format_is_found_by_name_or_imported() -> None:
    assert tool_format("hermes") is hermes
    assert tool_format("none") is plain_text
    assert tool_format("rlhf.rollout.tool_calls:llama3_json") is llama3_json
    with pytest.raises(ConfigError, match=r"environment\.tool_format is nowhere:format, which cannot be imported"):
        tool_format("nowhere:format")
