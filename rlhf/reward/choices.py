"""Answers that are letters of options (`B`, `(B) because …`, `\\textbf{(B)}`, `A and C`), words or times of day."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlhf.reward.written_answer import CHANGING, COUNTED, MULTIPLES, NAMES

DRESSING = re.compile(r"\\(?:text|math)[a-z]*(?=\s*\{)|\\[mf]?box(?:ed)?(?=\s*\{)|\\[,;:! ]|\\q?quad|[$*`{}~]")
NAMED = re.compile(
    r"\s*(?:(?i:(?:the )?(?:(?:correct|final|best|right) )?(?:option|choice|answer)s?(?: is| are)?)\s*:?\s*)?"
    r"([(\[]?)\s*([A-J])(?![A-Za-z0-9'])\s*([)\]]?)(.*)",
    re.DOTALL,
)
ALONE = re.compile(r"[\s.,:;)\]]*")
SAID = re.compile(
    r"[):.]+(?:\s.*|$)|,?\s+(?:because|since|as|is)\b.*|,?\s*(?:-{1,3}|[\u2013\u2014])\s*[A-Za-z]{2}.*", re.DOTALL
)
"""What an option says, or a reason for it."""
OTHER = re.compile(r"\s*(?:[,/&;]|and\b|or\b)\s*[(\[]?[A-J](?![A-Za-z0-9'])")
SEVERAL = re.compile(r"(?:[\s(\[]*[A-J][\s)\]]*(?:,\s*and\b|[,;&\u3001]|and\b|$))+[\s.]*")
CHOSEN = re.compile(
    r"(?i:(?:\b(?:option|choice|choose|chose|pick|select)|故选|应选|选择)(?:\s+is)?)\W{0,6}([A-J])(?![A-Za-z0-9'])(.*)"
)
TOGETHER = re.compile(r"(?=[A-J]{2})A?B?C?D?E?F?G?H?I?J?")
"""Several letters without anything between, which may be a product too."""
ARTICLES = "AI"
"""Letters that are also words."""
WRAPPING = re.compile(r"\\(?:text|math)(?:rm|bf|it|sf|tt|normal)?(?=\s*\{)|\\mbox(?=\s*\{)|\\[,;:! ]|[$*`{}~\"]")
TEXT = re.compile(r"\s*[$*]*\\(?:text|mbox)[a-z]*\s*\{[^{}]*[A-Za-z]{2}[^{}]*\}[$*.]*\s*")
WORDS = re.compile(r"[A-Za-z\u00c0-\u024f][A-Za-z\u00c0-\u024f'\u2019 ,.-]*")
WORD = re.compile(r"[A-Za-z\u00c0-\u024f]+")
SHORT = ("yes", "no", "odd", "all", "any")
"""Short words that are no products of variables."""
VERDICTS = ("yes", "no", "true", "false")
TIME = re.compile(
    r"(?:(\d{1,2}):([0-5]\d)|(\d{1,2})(?=\s*(?:[ap]|o)))\s*(?:o.?clock)?\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The letters of the options that are named, and what the one option says."""

    letters: frozenset[str]
    says: str = ""


def choice_of(text: str, *, loosely: bool = False) -> Choice | None:
    """Return the options that the whole text names; `loosely` also where the text of an option follows without any
    sign, and for small letters. None for formulas, and where options are named that exclude one another."""
    bare = DRESSING.sub(" ", text).strip()
    if SEVERAL.fullmatch(bare):
        return Choice(frozenset(re.findall("[A-J]", bare)))
    if loosely and TOGETHER.fullmatch(bare):
        return Choice(frozenset(bare))
    if loosely and re.fullmatch(r"[(\[]?\s*[a-j]\s*[)\]]?[.:]?", bare):
        bare = bare.upper()
    named = NAMED.match(bare)
    if not named:
        return None
    opened, letter, closed, rest = named.groups()
    if ALONE.fullmatch(rest):
        return Choice(frozenset(letter))
    if OTHER.match(rest):
        return None
    if closed and not re.match(r"\s*[-+/^_=<>(!|]", rest):
        return Choice(frozenset(letter), rest.strip(" :.)-"))
    if opened:
        return None
    if SAID.fullmatch(rest) or (loosely and letter not in ARTICLES and re.match(r"\s+[A-Za-z]{2}", rest)):
        return Choice(frozenset(letter), rest.strip(" :.)-"))
    return None


def chosen_in(prose: str) -> Choice | None:
    """Return the option that prose names last, as in "I choose (B)", or alone on its last line."""
    chosen = list(CHOSEN.finditer(prose))
    if chosen and not OTHER.match(chosen[-1][2].lstrip(")]*$")):
        return Choice(frozenset(chosen[-1][1]))
    lines = prose.strip().splitlines()
    return choice_of(lines[-1]) if lines and len(lines[-1]) < 100 else None


def same_words(reference: str, answer: str) -> bool | None:
    """Whether both are the same words or time of day; None if the reference is neither, or may be a ratio."""
    wanted, given = _time(reference), _time(answer)
    if wanted and given:
        return wanted[:2] == given[:2] and (wanted[2] == given[2] or not (wanted[2] and given[2]))
    if wanted:
        return False if wanted[2] or not wanted[1] else None
    words = plain_words(reference)
    if words is None:
        return None
    said = plain_words(answer)
    return said == words or (words in VERDICTS and (said or "").split(" ")[0].strip(",.") == words)


def _time(text: str) -> tuple[int, int, str] | None:
    found = TIME.fullmatch(WRAPPING.sub(" ", text).strip(" ."))
    if not found or not (found[2] or found[4] or "clock" in text):
        return None
    return int(found[1] or found[3]), int(found[2] or 0), (found[4] or "").lower()


def plain_words(text: str) -> str | None:
    """Return a text that consists of words, in lower case; None for possible mathematics."""
    bare = " ".join(WRAPPING.sub(" ", text).split()).strip(" .,!")
    if not WORDS.fullmatch(bare):
        return None
    words = [word.lower() for word in WORD.findall(bare)]
    if any(word in NAMES for word in words) or COUNTED.keys() | MULTIPLES >= set(words):
        return None
    known = TEXT.fullmatch(text) or any(len(word) > 3 or word in SHORT or word in CHANGING for word in words)
    return bare.lower().removeprefix("the ").removeprefix("a ").removeprefix("an ") if known else None
