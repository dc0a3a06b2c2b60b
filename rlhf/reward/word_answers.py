"""Answers that are words or times of day: two of them are the same, or they are not."""

from __future__ import annotations

import re

from rlhf.reward.written_answer import CHANGING, COUNTED, MULTIPLES, NAMES

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


def same_words(reference: str, answer: str) -> bool | None:
    """Whether both are the same words, or the same time of day. None if the reference is neither, or is digits that may
    also be a ratio while the answer is not a time."""
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
