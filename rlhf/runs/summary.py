"""The summary of a run, in one small file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SAVED, STOPPED = "saved", "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSummary:
    """One evaluation set: its metrics (`avg@n`, `pass@k`, `maj@k`, …) of the weights before the first
    update and, if they were evaluated, of those after the last."""

    problems: int
    distinct_answers: int
    start: Mapping[str, float]
    end: Mapping[str, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The content of `summary.json`. A missing value, for instance of an evaluation, is null."""

    name: str
    """Name of the run."""
    outcome: str = "finished"
    """`finished`, `saved: …` (it ended early, to be resumed), `stopped` (by the user), or the error that ended it."""
    eval_reward_start: float | None = None
    """Mean held-out reward (`avg@n`) of the first evaluation set before the first update."""
    eval_reward_end: float | None = None
    """The same after the last update; null if these weights were not evaluated."""
    eval_problems: int = 0
    """Distinct held-out problems of the first evaluation set."""
    eval_distinct_answers: int = 0
    """Different reference answers among them, which limit the reward of a constant reply."""
    evaluations: Mapping[str, SetSummary] = field(default_factory=dict)
    """Every evaluation set, by name."""
    updates: int = 0
    """Updates of the final weights."""
    samples: int = 0
    """Number of trained episodes."""
    second_uses: int = 0
    """Number of groups that an update trained a second time; their episodes are not counted again."""
    wall_seconds: float = 0.0
    """From the command to the end; for a resumed run, the sum over all its processes."""
    seconds_to_first_update: float | None = None
    """From the command to the start of the first update's training."""
    group_counts: Mapping[str, int] = field(default_factory=dict)
    """`admitted = trained + filtered + failed + in_flight`, in groups."""
    sample_counts: Mapping[str, int] = field(default_factory=dict)
    """`admitted = trained + filtered + failed + unscored + in_flight`, in episodes."""
    max_staleness: int = 0
    """Largest staleness of any trained token, in updates."""

    @property
    def saved(self) -> bool:
        """Whether the run ended early, to be resumed."""
        return self.outcome.startswith(SAVED)
