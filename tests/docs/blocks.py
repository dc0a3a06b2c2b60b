"""The code blocks of README, CONTRIBUTING and docs/, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(
    r"(?:^<!-- block: (?P<mark>[^\n]*) -->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<source>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
PROMPT = re.compile(r"^\w*\$ ")
ENDS = {"&", "&&", "|", ">", ";"}


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block. `mark` is what an HTML comment above it says of how it is tested: `by name: WHY`."""

    page: str
    line: int
    language: str
    source: str
    mark: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Said:
    """A command as words, and the lines that are shown under it."""

    words: tuple[str, ...]
    output: tuple[str, ...] = ()


def blocks() -> list[Block]:
    return [
        Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, found.start()) + 1,
            language=found["language"],
            source="".join(line.removeprefix(found["indent"]) for line in found["source"].splitlines(keepends=True)),
            mark=found["mark"] or "",
        )
        for page in PAGES
        for text in [page.read_text()]
        for found in BLOCK.finditer(text)
    ]


def commands(block: Block) -> Iterator[Said]:
    """Every command of a block: all lines of `bash`, and of `console` those behind a prompt."""
    lines = block.source.replace("\\\n", " ").splitlines()
    starts = [place for place, line in enumerate(lines) if block.language == "bash" or PROMPT.match(line)]
    for place, following in zip(starts, [*starts[1:], len(lines)], strict=True):
        output = tuple(lines[place + 1 : following])
        for words in parts(PROMPT.sub("", lines[place])):
            yield Said(words=words, output=output)


def parts(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of a line: pipes and what is behind them apart, and what is written to a file cut off."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    ended = False
    for word in lexer:
        if word in ENDS:
            if words:
                yield tuple(words)
            words, ended = [], word == ">"
        elif not ended:
            words.append(word)
    if words:
        yield tuple(words)
