"""The grammar that a reply is held to: a call of a tool, or JSON of a schema. The tool choice and the text format are
as OpenAI and Anthropic define them. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rlhf.chat.tool_calls import ToolFormat
from rlhf.types import Tool


def called(tool_choice: Any) -> str:
    """Return which tools the reply must call: `auto`, `none`, `required`, `=NAME`; `other` is a choice that is
    ignored."""
    match tool_choice:
        case None | "auto" | {"type": "auto"}:
            return "auto"
        case "none" | {"type": "none"}:
            return "none"
        case "required" | {"type": "any"}:
            return "required"
        case {"function": {"name": str(name)}} | {"type": "function" | "custom" | "tool", "name": str(name)}:
            return f"={name}"
        case _:
            return "other"


def forced_tools(tool_choice: Any, tools: Sequence[Tool]) -> list[Tool] | None:
    """Return the tools of which one must be called; None where the policy may choose."""
    choice = called(tool_choice)
    if choice in ("auto", "none", "other"):
        return None
    return [one for one in tools if choice in ("required", f"={one.name}")]


def text_schema(text_format: Any) -> dict[str, Any] | None:
    """Return the JSON schema of the reply's text, if it has one."""
    match text_format:
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
        case {"type": "json_schema", "schema": dict(schema)}:
            return schema
        case {"type": "json_object"}:
            return {"type": "object"}
        case _:
            return None


def unwritable(
    tool_choice: Any, tools: Sequence[Tool], text_format: Any, read: ToolFormat, *, field: str
) -> tuple[str, str] | None:
    """Return the first field that asks for a grammar which cannot be held, and why; `field` names the text format."""
    if text_format is not None and text_schema(text_format) is None and text_format != {"type": "text"}:
        use = 'give {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", ... "schema": {...}}'
        return field, f"{field} is {text_format!r:.80}; {use}"
    forced = forced_tools(tool_choice, tools)
    if forced is not None and not forced:
        return "tool_choice", f"tool_choice is {tool_choice!r:.80}, and tools has no such function"
    if forced and read.around is None:
        return "tool_choice", f"a call in the format {read.name} cannot be forced; use tool_choice auto"
    return None


def reply_grammar(tool_choice: Any, tools: Sequence[Tool], text_format: Any, read: ToolFormat) -> str:
    """Return the grammar of a reply whose calls are in the format `read`, as `Sampling.structure` has it; "" if the
    reply is free. Where the policy may choose, a text of a schema may be a call instead."""
    forced, schema = forced_tools(tool_choice, tools), text_schema(text_format)
    if forced is None and schema is None:
        return ""
    elements: list[dict[str, Any]] = []
    for one in (forced or tools) if read.around and called(tool_choice) != "none" else ():
        begin, end = (part.replace("NAME", json.dumps(one.name)) for part in read.around or ())
        content = {"type": "json_schema", "json_schema": {"type": "object"} | dict(one.parameters)}
        elements.append({"type": "tag", "begin": begin, "content": content, "end": end})
    if forced is None:
        if not elements:
            return json.dumps({"json": json.dumps(schema)})
        elements.append({"type": "json_schema", "json_schema": schema})
    tag = {"type": "structural_tag", "format": {"type": "or", "elements": elements}}
    return json.dumps({"structural_tag": json.dumps(tag)})
