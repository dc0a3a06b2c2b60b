"""What the benchmark measured, against what is required of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

LONGEST = 2.0
"""A publish may take this many times what the slower of its two bounds takes."""
SPANS = (
    "prepare",
    "transfer",
    "gather",
    "send",
    "receive",
    "reload",
    "repack",
    "learner_canary",
    "commit",
    "canary",
    "resume",
)
"""Within `transfer` the learner gathers and sends, and the engine receives, reloads and repacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Seconds of raw gloo, of vLLM's own reload as it comes and where memory is `kept`, and of a publish, measured one
    after another; `spans` are the seconds of the publish's spans by name."""

    gloo: float
    reload: float
    kept: float
    publish: float
    spans: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The rounds of one plan, in order."""

    plan: str
    rounds: Sequence[Round]

    @property
    def publish(self) -> float:
        return median(one.publish for one in self.rounds)

    @property
    def bound(self) -> float:
        """The slower of raw gloo and vLLM's own reload."""
        return max(median(one.gloo for one in self.rounds), median(one.reload for one in self.rounds))

    @property
    def ratio(self) -> float:
        return self.publish / self.bound

    @property
    def ratio_kept(self) -> float:
        """The ratio to the slower of raw gloo and a reload that gains from kept memory too."""
        return self.publish / max(median(one.gloo for one in self.rounds), median(one.kept for one in self.rounds))


def table(measured: Sequence[Measured]) -> str:
    """A line a plan, as Markdown: medians of the rounds, in seconds."""
    heads = ("plan", "raw gloo", "own reload", "the same, kept", "publish", "ratio", "the same, kept", *SPANS)
    rows = [
        (
            one.plan,
            f"{median(r.gloo for r in one.rounds):.2f}",
            f"{median(r.reload for r in one.rounds):.2f}",
            f"{median(r.kept for r in one.rounds):.2f}",
            f"{one.publish:.2f}",
            f"{one.ratio:.2f}",
            f"{one.ratio_kept:.2f}",
            *(f"{median(r.spans.get(name, 0.0) for r in one.rounds):.2f}" for name in SPANS),
        )
        for one in measured
    ]
    lines = (heads, tuple("---" for _ in heads), *rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def result(measured: Sequence[Measured]) -> dict[str, Any]:
    """What the RESULT line holds."""
    ratios = {one.plan: round(one.ratio, 3) for one in measured}
    return {"benchmark": "publish", **ratios, "missed": missed(measured)}


def missed(measured: Sequence[Measured]) -> list[str]:
    """Plans whose publishes take too long."""
    return [one.plan for one in measured if one.ratio > LONGEST]
