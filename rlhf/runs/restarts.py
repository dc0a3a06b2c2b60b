"""The automatic restarts of a run: a line for each in `restarts.jsonl`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlhf.runs.jsonl import read_jsonl


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Why and from where a run restarted automatically."""

    number: int
    """From 1, in one `rlhf train`."""
    cause: str
    """What ended the attempt before."""
    time: float
    """When it ended, in seconds since 1970."""
    reached: int
    """Updates that it had made."""
    from_update: int = 0
    """The update of the checkpoint from which the run continues; 0: from the beginning."""

    @property
    def sentence(self) -> str:
        """For users."""
        return f"restart {self.number} from update {self.from_update} of {self.reached}, because {self.cause}"


def read_restarts(path: Path) -> tuple[Restart, ...]:
    """Return the restarts in a file, the oldest first; none if there is no file. Raises `DataError`."""
    return tuple(Restart(**row) for row in read_jsonl(path)) if path.exists() else ()
