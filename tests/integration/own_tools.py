"""A tool format for models that have learnt nothing: whatever they say calls a tool."""

from __future__ import annotations

from rlhf.rollout.tool_calls import Spoken
from rlhf.types import ToolCall


def always(text: str) -> Spoken:
    return Spoken(calls=(ToolCall(id="0", name="echo", arguments={"text": text}),))
