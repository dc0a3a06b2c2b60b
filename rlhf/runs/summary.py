"""What a run came to, in one small file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The content of `summary.json`. A number that the run never had (no evaluation, say) is null."""

    name: str
    """Name of the run."""
    outcome: str = "finished"
    """`finished`, `stopped` (by the user), or the error that ended it."""
    eval_reward_start: float | None = None
    """Mean held-out reward of greedy replies before the first update."""
    eval_reward_end: float | None = None
    """The same after the last."""
    eval_problems: int = 0
    """Held-out problems; an evaluation plays each once."""
    eval_distinct_answers: int = 0
    """Different reference answers among them: a policy that repeats one reply cannot pass as many."""
    updates: int = 0
    """Updates behind the final weights."""
    samples: int = 0
    """Episodes trained."""
    wall_seconds: float = 0.0
    """From the command to the end."""
    seconds_to_first_update: float | None = None
    """From the command until the first update began to train."""
    group_accounts: Mapping[str, int] = field(default_factory=dict)
    """`admitted = trained + filtered + failed + in_flight`, in groups."""
    sample_accounts: Mapping[str, int] = field(default_factory=dict)
    """`admitted = trained + filtered + failed + unscored + in_flight`, in episodes."""
    max_staleness: int = 0
    """Largest staleness of any trained token, in updates."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
