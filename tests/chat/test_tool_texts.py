"""Texts of models, rewritten from what users reported of parsers, mean what the file beside this one says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from rlhf.chat.tool_calls import FORMATS, ToolFormat
from rlhf.models.tiny import byte_tokenizer
from rlhf.types import Tool

TEXTS = [json.loads(line) for line in Path(__file__).with_name("tool_calls.jsonl").read_text("utf-8").splitlines()]
BY_VLLM = {"qwen3_coder_xml": "qwen3_coder", "glm45": "glm45"}
"""The file's names of formats that vLLM's parsers parse."""
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


def tool(name: str, **properties: Any) -> Tool:
    return Tool(name=name, description="", parameters={"type": "object", "properties": properties})


TOOLS = [
    tool("get_weather", city=TEXT),
    tool("write_file", path=TEXT, text=TEXT),
    tool("grep", pattern=TEXT),
    tool("calc", x={"type": "number"}),
    tool("search", query=TEXT, limit=NUMBER),
    tool("find", filter={"type": "object"}, tags={"type": "array"}, n=NUMBER),
    tool("get_time"),
    tool("get_current_time"),
    tool("delete_all"),
]


def marked_tokenizer() -> PreTrainedTokenizerBase:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    return tokenizer


def read(name: str) -> ToolFormat:
    if name not in BY_VLLM:
        return FORMATS[name]
    from rlhf.chat.vllm_parsers import vllm_format

    return vllm_format(BY_VLLM[name], marked_tokenizer(), "tool_format")


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"{number}-{row['format']}", marks=[pytest.mark.engine] * (row["format"] in BY_VLLM))
        for number, row in enumerate(TEXTS)
    ],
)
def test_a_text_says_what_is_written_beside_it(row: dict[str, Any]) -> None:
    parsed, expected = read(row["format"])(row["text"], TOOLS), row["expect"]
    assert [{"name": call.name, "arguments": call.arguments} for call in parsed.calls] == expected["calls"]
    assert (parsed.problem is not None) == expected["problem"], parsed.problem
    assert parsed.beside == expected.get("beside", parsed.beside)
