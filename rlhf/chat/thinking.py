"""Separate a reply's answer from its thinking, between `<think>`, which a template may write, and `</think>`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

MARK = re.compile(r"(?<![\"'`])(?:</?(?:seed:)?(?:think|thinking|thought|reasoning)>|\[/?THINK\])", re.IGNORECASE)
"""A mark after a quotation mark is only quoted, or is text of a program."""
HEADER_TOKENS = 16
"""Enough for the end of a reply's header, a `<think>` in letters included."""
BEGUN = re.compile(rf"{MARK.pattern}\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMarks:
    """The text that opens a tool call and the text that closes it; marks of thinking within are part of it."""

    opening: str = ""
    closing: str = ""


NO_MARKS = CallMarks()


def begun_thinking(header: str) -> str:
    """Return the `<think>` at the end of a reply's header, with the blanks after it; else empty."""
    begun = BEGUN.search(header)
    return begun[0] if begun and "/" not in begun[0] else ""


def after_thinking(reply: str) -> str:
    """Return the text after the reply's last thinking; empty if thinking never ends."""
    end = where_thinking_ends(reply)
    return "" if end is None else reply[end:]


def where_thinking_ends(reply: str) -> int | None:
    """Return where the last thinking of the reply ends: 0 without any, None if it never ends."""
    end, unended = _last_thinking(reply, NO_MARKS, False)
    return end if unended is None else None


def thought_and_said(text: str, marks: CallMarks = NO_MARKS, *, thinking: bool = False) -> tuple[str, str]:
    """Split a reply into its thinking, up to the last `</think>` outside calls, and its answer. `thinking`: the header
    has opened it. If it never ends, the answer is only the calls at the very end, which are no drafts."""
    end, unended = _last_thinking(text, marks, thinking)
    if unended is None:
        return text[:end], text[end:]
    said = len(text)
    while marks.closing and text[unended:said].rstrip().endswith(marks.closing):
        said = max(text.rfind(marks.opening, unended, said), unended)
    return text[:said], text[said:]


def _last_thinking(text: str, marks: CallMarks, thinks: bool) -> tuple[int, int | None]:
    """Return where thinking ended last, and where the thinking begins that never ends, None without such."""
    end, begun = 0, 0
    for mark in MARK.finditer(text):
        if not thinks and text.rfind(marks.opening, end, mark.start()) > text.rfind(marks.closing, end, mark.start()):
            continue  # within a call
        if "/" in mark[0]:
            end, thinks = mark.end(), False
        elif not thinks:
            begun, thinks = mark.start(), True
    return end, begun if thinks else None
