"""Find where a reply states its final answer. Pure text: the answer itself is read elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

OPENING, CLOSING = "<answer>", "</answer>"
MARK = re.compile(r"^[ \t>*]*####(?!#)[ \t]*(.*)$", re.MULTILINE)
"""GSM8K's mark at the start of a line, followed by the answer."""
HEADING = re.compile(
    r"(?i)[\s*_]*+(?:(?:step|part|case|section|question|problem|exercise|example|method|option)\b.*"
    r"|\(?[\divx]+[.):]\s.*[a-z]{2}.*|(?=.*[a-z]{2})[^\d\\$]*)"
)
"""Text after `####` if that is a Markdown heading and more text follows."""
BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
BETWEEN = re.compile(
    r"[\s$]*(?:\\[()\[\]]\s*)?(?:,?\s*(?:and|or|\\text\s*\{\s*(?:and|or)\s*\})|[,;])"
    r"[\s$]*(?:\\[()\[\]]\s*)?(?:[A-Za-z]\s*=\s*)?"
)
"""Text between the boxes of one answer."""
PHRASE = re.compile(
    r"(?i)(?:\banswers?\b[^\n.:=]{0,60}?(?::|=|\bis\b|\bare\b|\bbe\b)"
    r"|答案[^\n\u3002\uff1a:=不]{0,20}?[\uff1a:=是为])[ \t:\uff1a*_]*"
)
SENTENCE_END = re.compile(r"[.!?](?=\s|$)|[\u3002\uff01]|,?\s+(?:because|since|as|which|where|so)\b")
LONGEST_STATEMENT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The first of `texts` that can be parsed is the answer. If it is `marked`, nothing else in the reply counts."""

    texts: tuple[str, ...]
    marked: bool


def statement_of(reply: str) -> Statement:
    """Return the last answer block, else what follows `####`, the last box, "the answer is", else the reply."""
    _, opened, inside = reply.rpartition(OPENING)
    text = inside.partition(CLOSING)[0] if opened else reply
    for find in (_mark, _box):
        found = find(text)
        if found is not None:
            return Statement(texts=(found,), marked=True)
    texts = [text] if opened or len(text) <= LONGEST_STATEMENT else []
    return Statement(texts=(*_phrased(text), *texts), marked=bool(opened))


def _mark(text: str) -> str | None:
    for mark in reversed(list(MARK.finditer(text))):
        if not (HEADING.fullmatch(mark[1][:LONGEST_STATEMENT]) and text[mark.end() :].strip()):
            return mark[1] if (boxed := _box(mark[1])) is None else boxed
    return None


def _box(text: str) -> str | None:
    """Return the content of the last box, and of those that form one answer with it; nothing if a box has no end."""
    contents: list[str] = []
    begin = len(text)
    for start in reversed(list(BOX.finditer(text))):
        end = _closing_brace(text, start.end())
        if contents and (end is None or end >= begin or not BETWEEN.fullmatch(text, end + 1, begin)):
            break
        contents.append("" if end is None else text[start.end() : end])
        begin = start.start()
        if end is None:
            break
    return ", ".join(reversed(contents)) if contents else None


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for brace in re.finditer(r"(?<!\\)[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return start + brace.start()
    return None


def _phrased(text: str) -> tuple[str, ...]:
    """Return what follows the last "the answer is": to the end of its line, and of its sentence."""
    phrases = list(PHRASE.finditer(text))
    if not phrases:
        return ()
    rest = text[phrases[-1].end() :].lstrip()[:LONGEST_STATEMENT]
    line = rest.partition("\n\n" if rest.startswith(("$$", "\\[")) else "\n")[0]
    end = SENTENCE_END.search(line)
    return (line, line[: end.start()]) if end else (line,)
