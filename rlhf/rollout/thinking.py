"""Where a reply stops thinking: only what it says afterwards may contain its tool calls. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlhf.models.thinking import begun_thinking

BEGIN = re.compile(r"<think>|\[THINK\]")
END = re.compile(r"</think>|\[/THINK\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMarks:
    """The text that opens a tool call and the text that closes it; empty where a format has none."""

    opening: str = ""
    closing: str = ""

    def unclosed(self, text: str) -> bool:
        """Whether a call that `text` opens is still open at its end: marks of thinking are then part of the call."""
        return bool(self.opening) and text.rfind(self.opening) > text.rfind(self.closing)


NO_MARKS = CallMarks()


def begins_thinking(header: str) -> bool:
    """Whether the header of a reply opens the thinking, as some chat templates do."""
    return bool(begun_thinking(header))


def thought_and_said(text: str, marks: CallMarks, *, thinking: bool = False) -> tuple[str, str]:
    """Split a reply into its thinking and what it says. `thinking`: the header has opened the thinking.

    Thinking ends at the last `</think>` outside calls. A reply whose thinking never ends says nothing, except calls at
    its very end: there the policy has given its turn away, so they are no drafts.
    """
    said = 0
    for end in END.finditer(text):
        before = text[said : end.start()]
        if thinking or _begun(before, marks) is not None or not marks.unclosed(before):
            said, thinking = end.end(), False
    begun = 0 if thinking else _begun(text[said:], marks)
    if begun is None:
        return text[:said], text[said:]
    last = _last_calls(text, said + begun, marks)
    return text[: said + begun] + text[said + begun : last], text[last:]


def _begun(text: str, marks: CallMarks) -> int | None:
    """Return the position at which thinking begins outside a call; None where it does not."""
    return next((one.start() for one in BEGIN.finditer(text) if not marks.unclosed(text[: one.start()])), None)


def _last_calls(text: str, first: int, marks: CallMarks) -> int:
    """Return the position at which the calls begin that `text` ends with; its length where it ends with none."""
    start = len(text)
    while marks.closing and text[first:start].rstrip().endswith(marks.closing):
        start = max(text.rfind(marks.opening, first, start), first)
    return start
