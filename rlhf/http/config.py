"""Settings of the HTTP client: attempts, backoff, concurrency and circuit breaker."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from rlhf.config import Config
from rlhf.errors import RecordingError


class HttpConfig(Config):
    """One policy for every server that is called over HTTP."""

    attempts: int = Field(4, ge=1)
    """Times a call is tried, the first included. Only what is safe to repeat is tried again."""
    initial_backoff_seconds: float = Field(0.25, gt=0)
    """Pause before the second attempt. It doubles with every attempt, and is drawn between its half and its whole."""
    max_backoff_seconds: float = Field(8, gt=0)
    """No pause is longer, whatever a server asks for."""
    concurrency: int = Field(32, ge=1)
    """Calls in flight at most. A server that states its capacity, or says that it is busy, gets fewer."""
    failure_threshold: int = Field(16, ge=1)
    """Calls that may fail in a row, all attempts counted as one, before the circuit opens and calls fail at once."""
    reset_seconds: float = Field(30, gt=0)
    """How long the circuit stays open before one call tries the server again."""


class RecordingConfig(Config):
    """A file of recorded answers."""

    path: str
    """JSONL file with one request and its answer a line."""
    mode: Literal["record", "replay"] = "replay"
    """`record` asks the server and writes a file that must not exist yet; `replay` answers from the file and asks
    nobody: a request that was not recorded ends the run."""

    @property
    def file(self) -> Path:
        """The path with `~` expanded."""
        return Path(self.path).expanduser()


def check_recording(recording: RecordingConfig) -> None:
    """Raises `RecordingError` for one that cannot be played, or that would be written over."""
    if recording.mode == "replay" and not recording.file.is_file():
        raise RecordingError(f"{recording.file}: no such recording; record it first (recording.mode=record)")
    if recording.mode == "record" and recording.file.exists():
        raise RecordingError(
            f"{recording.file} is there already; replay it (recording.mode=replay), or remove it to record again"
        )
    if not recording.file.parent.is_dir():
        raise RecordingError(f"{recording.file}: there is no folder {recording.file.parent}; make it first")
