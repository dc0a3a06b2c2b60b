"""A cell of the table, and what it may be."""

from __future__ import annotations

from dataclasses import dataclass

MAIN = ("packed", "gradient", "engine", "export")
"""What a family needs to be right."""
LIMITS = {
    "packed": 1e-5, "gradient": 1e-6, "engine": 1e-4, "export": 0.0, "critic": 1e-5, "merged": 1e-4, "adapter": 1e-4,
}  # fmt: skip
"""Logits, the whole gradient's relative error, nats, logits, a critic's numbers, nats, nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A number, or the words that refuse."""

    value: float = float("nan")
    refused: str = ""
