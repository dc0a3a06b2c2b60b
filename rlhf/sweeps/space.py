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
"""TrialValues of a trial, by dotted key."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """The values of a list."""

    values: tuple[Any, ...]

    @property
    def examples(self) -> tuple[Any, ...]:
        """TrialValues that have to be valid."""
        return self.values

    def __str__(self) -> str:
        return json.dumps(self.values)


@dataclass(frozen=True, slots=True)
class Between:
    """Numbers from `low` to `high`, both included: evenly (`uniform`), by their logarithm (`log`), or whole (`int`)."""

    low: float
    high: float
    form: str

    @property
    def examples(self) -> tuple[float, float]:
        """TrialValues that have to be valid."""
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.form}({self.low},{self.high})"


Search = OneOf | Between
Space = Mapping[str, Search]


def split_space(words: Sequence[str]) -> tuple[dict[str, Search], list[str]]:
    """Separate the keys that are searched from plain overrides. Raises `UserError`, also for a space without a key."""
    space: dict[str, Search] = {}
    overrides = []
    for word in words:
        key, _, text = word.partition("=")
        if text.startswith("[") or CALL.fullmatch(text):
            space[key] = search_of(key, text)
        else:
            overrides.append(word)
    if not space:
        raise UserError(f"nothing to search: give values to a key, KEY={FORMS}")
    return space, overrides


def search_of(key: str, given: str | Sequence[Any]) -> Search:
    """Read the values of a key, as text or as a list. Raises `UserError` for an empty list and for wrong bounds."""
    if isinstance(given, str) and (call := CALL.fullmatch(given)):
        return _between(f"{key}={given}", call[1], call[2].split(","))
    values = parse_override(f"{key}={given}")[1] if isinstance(given, str) else given
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence):
        raise UserError(f"{key}={given}: the values of a key are {FORMS}")
    if not values:
        raise UserError(f"{key}=[] has no value to try")
    return OneOf(tuple(values))


def _between(word: str, form: str, bounds: Sequence[str]) -> Between:
    try:
        low, high = map(int if form == "int" else float, bounds)
    except ValueError:
        kind = "whole numbers" if form == "int" else "numbers"
        raise UserError(f"{word}: {form}(low,high) takes two {kind}") from None
    if not low < high or (form == "log" and low <= 0):
        raise UserError(f"{word}: low has to be below high{', and above 0' if form == 'log' else ''}")
    return Between(low, high, form)


def as_words(values: TrialValues) -> list[str]:
    """Write values as overrides of the command line."""
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def short_words(values: TrialValues) -> str:
    """Write values for people: the last part of each key, and four digits."""
    shown = {key.rpartition(".")[2]: f"{v:.4g}" if isinstance(v, float) else str(v) for key, v in values.items()}
    return " ".join(f"{key}={value}" for key, value in shown.items())
