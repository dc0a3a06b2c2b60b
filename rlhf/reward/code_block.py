"""Extract the code from a reply, without its thinking: the last fenced Python block, with the earlier blocks that
define what it uses; else the last block without a language that looks like Python; else the whole answer. Linear."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rlhf.chat.thinking import after_thinking

FENCES = ("```", "~~~")
MOST_QUOTES = 9
MOST_SCANS = 4
"""How often, on average, a character may be read to find the end of a block."""
PYTHON = re.compile(r"\s*(?:\{\s*\.?)?py(?:thon)?[\d.]*(?![\w-])", re.IGNORECASE)
WITHIN = re.compile(r"[ \t]*(?:(?:>|[-*+]|\d{1,9}[.)])[ \t]+|>)*")
"""The prefix of every line of a block that is quoted, in a list, or indented."""
FENCE = re.compile(r"[ \t]*+(`{3,}+|~{3,}+)([^`]*+)$")
TOKEN = re.compile(r"\\.|`{3,}|~{3,}|\"\"\"|'''|[\"'#]")
"""Tokens that decide where a Python block ends. Each line is scanned from its start."""


ANSWER, ANSWERED = "<answer>", "</answer>"
STATEMENT = re.compile(
    r"^(?:def|class|import|from|async|for|while|if|try|with|print\(|@|[A-Za-z_][\w.]* *[-+*]?=)", re.M
)
"""The beginning of a line of a program."""
DEFINED = re.compile(r"^(?:(?:async )?def|class) +(\w+)|^(?:from +[\w.]+ +)?import +(.+)|^([A-Z][A-Z\d_]*) *=", re.M)
"""What a line at the top level defines: a function, a class, modules, a constant."""
WORD = re.compile(r"[A-Za-z_]\w*")


def code_of(response: str) -> str:
    """Return the code of a reply; empty if the reply never stops thinking."""
    answer = after_thinking(response)
    prose, tagged, inside = answer.rpartition(ANSWER)
    if tagged and not set(prose.rpartition("\n")[2]) & set("\"'`#"):  # the code itself may contain such a line
        answer = (inside.rpartition(ANSWERED)[0] or inside).lstrip(" \t").removeprefix("\n")
    blocks = list(_python_blocks(answer))
    if not blocks and not STATEMENT.match(answer.lstrip()):
        blocks = list(_plain_blocks(answer))[-1:]
    return _with_what_it_uses(blocks) if blocks else answer


def _with_what_it_uses(blocks: Sequence[str]) -> str:
    """Return the last block, preceded by earlier blocks that define names it uses but does not define."""
    *earlier, code = blocks
    used, defined, parts = set(WORD.findall(code)), _defined(code), [code]
    for block in reversed(earlier):
        offered = _defined(block) - defined
        if offered & used:
            parts.append(block)
            used.update(WORD.findall(block))
            defined |= offered
    return "\n".join(reversed(parts))


def _defined(code: str) -> set[str]:
    found = [name for names in DEFINED.findall(code) for name in names if name]
    return {(WORD.findall(part) or [""])[-1] for names in found for part in names.partition("#")[0].split(",")}


def _plain_blocks(response: str) -> Iterator[str]:
    """Iterate over the blocks without a language: those that do not look like Python first."""
    blocks, fence, language, lines = list[str](), "", "", list[str]()
    for line in response.split("\n"):
        mark = FENCE.match(line)
        if not fence and mark:
            fence, language, lines = mark[1], mark[2].strip(), []
        elif fence and mark and mark[1].startswith(fence) and not mark[2].strip():
            blocks += [] if language else ["\n".join([*lines, ""])]
            fence = ""
        elif fence:
            lines.append(line)
    if fence and not language:
        blocks.append("\n".join(lines))
    written = [block for block in blocks if block.strip()]
    yield from sorted(written, key=lambda block: STATEMENT.search(block) is not None)


def _python_blocks(response: str) -> Iterator[str]:
    """Iterate over the Python blocks of a reply."""
    lines = response.split("\n")
    at, budget = 0, [MOST_SCANS * (len(response) + 1)]  # characters that may still be read
    while at < len(lines):
        at += 1
        if fence := _opened(lines[at - 1]):
            end, before = _end(lines, at, fence, budget)
            block = "\n".join(_taken_out([*lines[at:end], *before], lines[at - 1].rpartition(fence)[0]))
            if block.strip():  # prose about a fence opens nothing
                yield block
            at = end  # the line may open the next block


def _opened(line: str) -> str:
    """Return the fence at the line's end that opens a Python block and is not part of prose; else empty."""
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


def _end(lines: list[str], start: int, fence: str, budget: list[int]) -> tuple[int, list[str]]:
    """Return the line of the fence that closes a block, and the text before it. A fence within a string or comment
    closes nothing; but if a string never ends, or the `budget` is spent, the first at the start of a line does."""
    quote, first = "", len(lines)
    for at in range(start, len(lines)):
        line = lines[at]
        if first == len(lines) and line.lstrip().startswith(fence[:3]):
            first = at
        if len(line) >= budget[0]:
            if first < len(lines):
                break
            continue
        budget[0] -= len(line) + 1
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
