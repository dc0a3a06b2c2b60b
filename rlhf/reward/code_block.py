"""Extract the code from a reply: its last fenced Python block. Linear in the length of the reply."""

from __future__ import annotations

import re

FENCES = ("```", "~~~")
MOST_QUOTES = 9
MOST_SCANS = 4
"""How often a letter is read for the end of a block, on average: ends are looked for behind strings that never end."""
PYTHON = re.compile(r"\s*(?:\{\s*\.?)?py(?:thon)?[\d.]*(?![\w-])", re.IGNORECASE)
WITHIN = re.compile(r"[ \t]*(?:(?:>|[-*+]|\d{1,9}[.)])[ \t]+|>)*")
"""The prefix of every line of a block that is quoted, in a list, or indented."""
TOKEN = re.compile(r"\\.|`{3,}|~{3,}|\"\"\"|'''|[\"'#]")
"""Tokens that decide where a Python block ends. Each line is scanned from its start, so the state of earlier lines
never shifts token boundaries."""


class Scans:
    """How many letters may still be read."""

    def __init__(self, letters: int) -> None:
        self._left = letters

    def spend(self, letters: int) -> bool:
        """Whether so many were left. Where they were not, shorter ones still may be."""
        if affordable := letters <= self._left:
            self._left -= letters
        return affordable


def code_of(response: str) -> str:
    """Return the last Python block in a reply; the whole reply where it has none."""
    lines = response.split("\n")
    code, at, budget = response, 0, Scans(MOST_SCANS * (len(response) + 1))
    while at < len(lines):
        at += 1
        if fence := _opened(lines[at - 1]):
            end, before = _end(lines, at, fence, budget)
            block = "\n".join(_taken_out([*lines[at:end], *before], lines[at - 1].rpartition(fence)[0]))
            code = block if block.strip() else code  # a fence that is only talked about opens nothing
            at = end  # the line may open the next block
    return code


def _opened(line: str) -> str:
    """Return the fence at the line's end that opens a Python block; empty if there is none. Behind prose and before
    more of it a fence is one that the prose is about."""
    for kind in FENCES:
        before, fence, language = line.rpartition(kind)
        named = PYTHON.match(language) if fence and "`" not in language else None
        if named and (not language[named.end() :].strip() or WITHIN.fullmatch(before.rstrip(kind[0]))):
            return fence + kind[0] * (len(before) - len(before.rstrip(kind[0])))
    return ""


def _taken_out(lines: list[str], before: str) -> list[str]:
    """Return the lines of a block without the text before each of them, if only that is before its fence."""
    within = WITHIN.match(before)
    quotes = before.count(">")
    if not within or within[0] != before or quotes > MOST_QUOTES:
        return lines
    return [_without(line, quotes, len(before.rpartition(">")[2])) for line in lines]


def _without(line: str, quotes: int, blanks: int) -> str:
    for _ in range(quotes):
        line = line.lstrip(" ").removeprefix(">")
    return line[min(blanks, len(line) - len(line.lstrip())) :]


def _end(lines: list[str], start: int, fence: str, budget: Scans) -> tuple[int, list[str]]:
    """Return the line of the fence that closes a block, and the text before the fence on that line.

    A fence within a string or comment closes nothing. Where all possible closing fences are within a string, that
    string is unterminated, and the first fence at the start of a line closes the block; so it does where the
    `budget` is spent.
    """
    quote, first = "", len(lines)
    for at in range(start, len(lines)):
        line = lines[at]
        if first == len(lines) and line.lstrip().startswith(fence[:3]):
            first = at
        if not budget.spend(len(line) + 1):
            if first < len(lines):
                break
            continue
        for token in TOKEN.finditer(line):
            found = token[0]
            if quote:
                quote = "" if found == quote else quote
            elif found.startswith(FENCES):
                if found.startswith(fence):
                    return at, [line[: token.start()]]
            elif found == "#":
                break
            elif not found.startswith("\\"):
                quote = found
        quote = quote if len(quote) == len('"""') else ""  # other strings end with their line
    return first, [""] * (first < len(lines))
