"""Write the record of every episode, and count the outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from rlhf.runs.durable import unguarded
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord, as_row

NEVER_ADMITTED = (EpisodeOutcome.EVALUATED, EpisodeOutcome.BASELINE, EpisodeOutcome.SERVED)
"""Outcomes of episodes that were never admitted for training."""


class EpisodeWriter:
    """Appends records to `episodes.jsonl`, and counts outcomes, starting from `outcomes`."""

    def __init__(
        self, path: Path, outcomes: Mapping[str, int] = MappingProxyType({}), may_write: Callable[[], None] = unguarded
    ) -> None:
        self._lines = JsonlWriter(path, may_write=may_write)
        self._outcomes = Counter({EpisodeOutcome(outcome): count for outcome, count in outcomes.items()})

    def write(self, records: Iterable[EpisodeRecord]) -> None:
        for record in records:
            self._outcomes[record.outcome] += 1
            self._lines.write([as_row(record)])

    @property
    def counts(self) -> dict[str, int]:
        """Episodes per outcome, and their sum `admitted`, without episodes that were never meant for training."""
        outcomes = {
            outcome.value: self._outcomes[outcome] for outcome in EpisodeOutcome if outcome not in NEVER_ADMITTED
        }
        return {"admitted": sum(outcomes.values())} | outcomes

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of written records of every outcome."""
        return {outcome.value: count for outcome, count in self._outcomes.items()}

    @property
    def written_bytes(self) -> int:
        return self._lines.written_bytes

    def flush(self) -> None:
        self._lines.flush()

    def close(self) -> None:
        self._lines.close()
