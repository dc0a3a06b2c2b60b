"""Names of the formats in which models write tool calls, as used in recipes. `rlhf/rollout/tool_calls.py` parses
them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from rlhf.config import is_piece

TOOL_FORMATS = ("hermes", "llama3_json", "none")


def known_tool_format(name: str) -> str:
    """Return `name` if it is one of `TOOL_FORMATS` or a `module:function`, else raises `ValueError`."""
    if name not in TOOL_FORMATS and not is_piece(name):
        raise ValueError(f"use {', '.join(TOOL_FORMATS)} or module:function")
    return name


ToolFormatName = Annotated[str, AfterValidator(known_tool_format)]
"""One of `TOOL_FORMATS`, or `module:function`."""
