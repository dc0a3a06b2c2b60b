"""Write the record of every episode, and count the outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from rlhf.runs.durable import unguarded
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.records import EpisodeRecord, Fate, as_row

BESIDE_THE_BOOKS = (Fate.EVALUATED, Fate.BASELINE, Fate.SERVED)
"""Outcomes of episodes that were never admitted for training."""


class EpisodeWriter:
    """Appends records to `episodes.jsonl`; `counts` is the accounting of samples, and goes on from `fates`."""

    def __init__(
        self, path: Path, fates: Mapping[str, int] = MappingProxyType({}), may_write: Callable[[], None] = unguarded
    ) -> None:
        self._lines = JsonlWriter(path, may_write=may_write)
        self._fates = Counter({Fate(fate): count for fate, count in fates.items()})

    def write(self, records: Iterable[EpisodeRecord]) -> None:
        for record in records:
            self._fates[record.fate] += 1
            self._lines.write([as_row(record)])

    @property
    def counts(self) -> dict[str, int]:
        """Episodes per fate, and `admitted`, their sum; those that were never meant for training are left out."""
        fates = {fate.value: self._fates[fate] for fate in Fate if fate not in BESIDE_THE_BOOKS}
        return {"admitted": sum(fates.values())} | fates

    @property
    def fates(self) -> dict[str, int]:
        """How often every outcome was written."""
        return {fate.value: count for fate, count in self._fates.items()}

    @property
    def written_bytes(self) -> int:
        return self._lines.written_bytes

    def flush(self) -> None:
        self._lines.flush()

    def close(self) -> None:
        self._lines.close()
