"""What the benchmark measured, against what is required of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number and its bound: a lower one, or an upper one where `at_most`. `how` says what it came from."""

    name: str
    value: float
    bound: float
    at_most: bool = False
    how: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    @property
    def required(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:.4g}"


def table(figures: Sequence[Figure]) -> str:
    """A line a figure, as Markdown."""
    heads = ("figure", "measured", "required", "met", "from")
    rows = [(f.name, f"{f.value:.3g}", f.required, "yes" if f.met else "NO", f.how) for f in figures]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = (heads, tuple("-" * width for width in widths), *rows)
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def result(figures: Sequence[Figure]) -> dict[str, Any]:
    """What the RESULT line holds."""
    measured = {figure.name: float(f"{figure.value:.4g}") for figure in figures}
    return {"benchmark": "learner", **measured, "missed": missed(figures)}


def missed(figures: Sequence[Figure]) -> list[str]:
    """Names of the figures that are out of their bounds."""
    return [figure.name for figure in figures if not figure.met]
