"""The space of a sweep: which values each key takes, as the command line writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.config import parse_override
from rlhf.errors import UserError

FORMS = "[a,b,…], log(low,high), uniform(low,high) or int(low,high)"
CALL = re.compile(r"(log|uniform|int)\((.*)\)")
TrialValues = Mapping[str, Any]
"""The values of a trial, by dotted key."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a key takes: one of the `values` of a `list`; or a number between two `values`, both included, evenly
    (`uniform`), by its logarithm (`log`), or whole (`int`)."""

    form: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        inside = json.dumps(self.values)[1:-1]
        return f"[{inside}]" if self.form == "list" else f"{self.form}({inside})"


Space = Mapping[str, Search]


def split_space(words: Sequence[str]) -> tuple[dict[str, Search], list[str]]:
    """Separate the keys that are searched from plain overrides. Raises `UserError`."""
    space: dict[str, Search] = {}
    overrides = []
    for word in words:
        key, _, text = word.partition("=")
        if text.startswith("[") or CALL.fullmatch(text):
            space[key] = search_of(key, text)
        else:
            overrides.append(word)
    return space, overrides


def search_of(key: str, given: str | Sequence[Any]) -> Search:
    """Read the values of a key, as text or as a list. Raises `UserError` for an empty list and for wrong bounds."""
    word = f"{key}={given}"
    if isinstance(given, str) and (call := CALL.fullmatch(given)):
        form, kind = call[1], int if call[1] == "int" else float
        try:
            low, high = map(kind, call[2].split(","))
        except ValueError:
            raise UserError(f"{word}: {form}(low,high) takes two {'whole ' * (kind is int)}numbers") from None
        if not low < high or (form == "log" and low <= 0):
            raise UserError(f"{word}: low has to be below high{', and above 0' * (form == 'log')}")
        return Search(form, (low, high))
    values = parse_override(word)[1] if isinstance(given, str) else given
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise UserError(f"{word} has no value to try; the values of a key are {FORMS}")
    return Search("list", tuple(values))


def as_words(values: TrialValues) -> list[str]:
    """Write values as overrides of the command line."""
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def short_words(values: TrialValues) -> str:
    """Write values for people: the last part of each key, and four digits."""
    shown = {key.rpartition(".")[2]: f"{v:.4g}" if isinstance(v, float) else str(v) for key, v in values.items()}
    return " ".join(f"{key}={value}" for key, value in shown.items()) or "the recipe's own"
