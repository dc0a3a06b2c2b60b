"""What every metric means, and its healthy range: the entries of `metric_catalogue.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from rlhf.config import LIKENESS, closest

NUMBERS = ("N", "K")
PAIRS = "PAIRS"
"""Placeholder for the metrics of preference pairs, without `pairs/`."""
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
CAPITALS = re.compile(r"\b[A-Z]+\b")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric, or a family whose names differ in the words in capitals. The file says what each value means."""

    name: str
    meaning: str
    unit: str = ""
    """`share` is a number from 0 to 1."""
    low: float | None = None
    high: float | None = None
    alarm: str = ""
    at_once: float | None = None
    """The value of which a single update is an alarm."""
    remedy: str = ""
    sometimes: bool = False
    counter: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches the names of the family."""
        of_pairs = (name.removeprefix("pairs/") for name in _entries() if name.startswith("pairs/"))
        words = dict.fromkeys(NUMBERS, r"\d+") | {PAIRS: "|".join(of_pairs)}
        return re.compile(CAPITALS.sub(lambda word: f"(?:{words.get(word[0], '.+')})", re.escape(self.name)))

    @property
    def plain_meaning(self) -> str:
        """The meaning without the markup of the documentation."""
        return LINK.sub(r"\1", self.meaning).replace("`", "")

    @property
    def healthy(self) -> str:
        """The healthy range as text; empty without one."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"at least {self.format(self.low)}"
        return "" if self.high is None else f"at most {self.format(self.high)}"

    def is_healthy(self, value: float) -> bool:
        """Whether a value is in the healthy range; without one, every value is. NaN is in no range."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def format(self, value: float) -> str:
        """Return a value with its unit."""
        if self.unit == "share":
            return f"{100 * value:.3g} %"
        number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return f"{number} {self.unit}".rstrip()


@cache
def catalogue() -> tuple[Metric, ...]:
    """Return every entry, in the order of the file."""
    return tuple(Metric(name=name, **entry) for name, entry in _entries().items())


def spaces() -> set[str]:
    """Return the words with which names of metrics begin, such as `reward`."""
    return {entry.name.partition("/")[0] for entry in catalogue()}


def find_metric(name: str) -> Metric | None:
    """Return the entry of the metric: the one with this name, else the first family with it, else the one of what a
    policy's name precedes; None for a user's own metric."""
    entries = catalogue()
    same = (entry for entry in entries if entry.name == name)
    found = next(same, None) or next((entry for entry in entries if entry.pattern.fullmatch(name)), None)
    of_policy = name.partition("/")[2]
    return found or (find_metric(of_policy) if "/" in of_policy else None)


def with_entries(names: Iterable[str]) -> list[tuple[str, Metric | None]]:
    """Return the names with their entries, in the order of the catalogue; the user's own come last."""
    places = {entry.name: place for place, entry in enumerate(catalogue())}
    entries = {name: find_metric(name) for name in names}
    return sorted(entries.items(), key=lambda item: places[item[1].name] if item[1] else len(places))


def search_metrics(name: str) -> Sequence[Metric]:
    """Return the entry of a metric, else all whose names begin with `name`."""
    found = find_metric(name)
    return [found] if found else [entry for entry in catalogue() if entry.name.startswith(name)]


def nearest_metric(name: str, likeness: float = LIKENESS) -> str | None:
    """Return the name in the catalogue that is most like a misspelt one; its last part may be all that was given."""
    names = {entry.name.rpartition("/")[2]: entry.name for entry in reversed(catalogue())}
    names |= {entry.name: entry.name for entry in catalogue()}
    close = closest(name, names, likeness)
    return close and names[close]


@cache
def _entries() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
