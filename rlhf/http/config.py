"""Settings of the HTTP client: attempts, backoff, concurrency and recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rlhf.config import Config
from rlhf.errors import RecordingError

Url = Annotated[str, Field(pattern=r"^https?://[^/\s]+\S*$")]


class HttpConfig(Config):
    """One policy for every server that is called over HTTP."""

    attempts: int = Field(4, ge=1)
    """Attempts per call, the first included. Failures that may pass are tried again: no connection, a busy server, a
    timeout, a broken connection, a server error."""
    initial_backoff_seconds: float = Field(0.25, gt=0)
    """Longest pause before the second attempt. It doubles with every attempt; the pause is a random part of it."""
    max_backoff_seconds: float = Field(8, gt=0)
    """Longest pause, even if a server asks for more."""
    concurrency: int = Field(32, ge=1)
    """Largest number of concurrent calls. A server that states a lower capacity gets fewer."""


class RecordingConfig(Config):
    """A file of recorded answers."""

    path: str
    """JSONL file with one request and its answer per line."""
    mode: Literal["record", "replay"] = "replay"
    """`record` asks the server and writes a file that must not exist yet; `replay` answers from the file
    without the server: a request that was not recorded ends the run."""

    @property
    def file(self) -> Path:
        return Path(self.path).expanduser()


def check_recording(recording: RecordingConfig) -> None:
    """Raise `RecordingError` for a file that cannot be replayed, or that would be overwritten."""
    if recording.mode == "replay" and not recording.file.is_file():
        raise RecordingError(f"{recording.file}: no such recording; record it first (recording.mode=record)")
    if recording.mode == "record" and recording.file.exists():
        raise RecordingError(
            f"{recording.file} exists already; replay it (recording.mode=replay), or remove it to record again"
        )
    if not recording.file.parent.is_dir():
        raise RecordingError(f"{recording.file}: there is no folder {recording.file.parent}; make it first")
