"""Which part of a reply is code: its last block between fences of Python. Linear in the length of the reply."""

from __future__ import annotations

import re

FENCE = "```"
TOKEN = re.compile(r"\\.|`{3,}|\"\"\"|'''|[\"'#]")
"""What matters to where a block of Python ends. A line is read from its start, so that no state of the lines before
moves where a token begins."""


def code_of(response: str) -> str:
    """The last block of Python in a reply; the whole reply where it has none."""
    lines = response.split("\n")
    code, at = response, 0
    while at < len(lines):
        at += 1
        if ticks := _opened(lines[at - 1]):
            end, before = _end(lines, at, ticks)
            code = "\n".join([*lines[at:end], *before])
            at = end  # the line may open the next block
    return code


def _opened(line: str) -> int:
    """The ticks of the fence that a line ends with and that opens a block of Python, else 0."""
    before, fence, language = line.rpartition(FENCE)
    if not fence or not language.lower().startswith("py") or "`" in language:
        return 0
    return len(before) - len(before.rstrip("`")) + len(FENCE)


def _end(lines: list[str], start: int, ticks: int) -> tuple[int, list[str]]:
    """The line of the fence that closes a block, and what stands before the fence there.

    Within a text or a comment of the code a fence closes nothing. Where all that could close the block are within a
    text, that text has no end, and the first fence at the start of a line closes it. There are two kinds of texts over
    several lines, and after one without an end no other of its kind begins: at most three blocks are read to the end
    of the reply.
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
        quote = quote if len(quote) == len('"""') else ""  # other texts end with their line
    return first, [""] * (first < len(lines))
