"""Extract the code from a reply: its last fenced Python block. Linear in the length of the reply."""

from __future__ import annotations

import re

FENCE = "```"
TOKEN = re.compile(r"\\.|`{3,}|\"\"\"|'''|[\"'#]")
"""Tokens that decide where a Python block ends. Each line is scanned from its start, so the state of earlier lines
never shifts token boundaries."""


def code_of(response: str) -> str:
    """The last Python block in a reply; the whole reply where it has none."""
    lines = response.split("\n")
    code, at = response, 0
    while at < len(lines):
        at += 1
        if ticks := _opened(lines[at - 1]):
            end, before = _end(lines, at, ticks)
            code = "\n".join([*lines[at:end], *before])
            at = end  # this line may open the next block
    return code


def _opened(line: str) -> int:
    """The number of backticks of a fence at the line's end that opens a Python block, else 0."""
    before, fence, language = line.rpartition(FENCE)
    if not fence or not language.lower().startswith("py") or "`" in language:
        return 0
    return len(before) - len(before.rstrip("`")) + len(FENCE)


def _end(lines: list[str], start: int, ticks: int) -> tuple[int, list[str]]:
    """The line of the fence that closes a block, and the text before the fence on that line.

    A fence within a string or comment closes nothing. Where all possible closing fences are within a string, that
    string is unterminated, and the first fence at the start of a line closes the block. There are two kinds of
    multi-line strings, and after an unterminated one no other of its kind begins: at most three blocks are scanned to
    the end of the reply.
    """
    quote, first = "", len(lines)
    for at in range(start, len(lines)):
        line = lines[at]
        if first == len(lines) and line.lstrip().startswith(FENCE):
            first = at
        for token in TOKEN.finditer(line):
            found = token[0]
            if quote:
                quote = "" if found == quote else quote
            elif found.startswith(FENCE):
                if len(found) >= ticks:
                    return at, [line[: token.start()]]
            elif found == "#":
                break
            elif not found.startswith("\\"):
                quote = found
        quote = quote if len(quote) == len('"""') else ""  # other strings end with their line
    return first, [""] * (first < len(lines))
