"""Tell what a reply says from what it only thinks. Thinking stands between `<think>` and `</think>`; a chat template
may write the `<think>` itself."""

from __future__ import annotations

import re

MARK = re.compile(r"<(/?)(?:seed:)?(?:think|thinking|thought|reasoning)>|\[(/?)THINK\]", re.IGNORECASE)
BEGUN = re.compile(rf"(?:{MARK.pattern})\s*$", re.IGNORECASE)


def where_thinking_ends(reply: str) -> int | None:
    """Return where the last thinking of the reply ends: 0 without any, None where it never ends."""
    end, thinks = 0, False
    for mark in MARK.finditer(reply):
        thinks = "/" not in mark[0]
        end = end if thinks else mark.end()
    return None if thinks else end


def after_thinking(reply: str) -> str:
    """Return what the reply says after its last thinking; nothing where thinking never ends."""
    end = where_thinking_ends(reply)
    return "" if end is None else reply[end:]


def begun_thinking(header: str) -> str:
    """Return the `<think>` with which the header of a reply ends, and the blanks behind it; else nothing."""
    begun = BEGUN.search(header)
    return begun[0] if begun and "/" not in begun[0] else ""
