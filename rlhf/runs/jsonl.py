"""Files with one JSON object per line: written in batches, read line by line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlhf.durable import private, unguarded
from rlhf.errors import DataError, DiskFailed
from rlhf.untrusted_text import escape_json

BUFFERED_LINES = 1024
"""Maximum number of buffered lines, which a killed run loses."""


class JsonlWriter:
    """Appends objects to a file. `flush` (or a full buffer) writes; `close` flushes.

    It calls `may_write` before the file grows, which raises if writing is forbidden. It removes a batch that a full
    disk truncated.
    """

    def __init__(
        self, path: Path, buffered_lines: int = BUFFERED_LINES, may_write: Callable[[], None] = unguarded
    ) -> None:
        self._path, self._file = path, open(path, "ab", buffering=0, opener=private)  # noqa: SIM115
        self._buffered_lines, self._may_write = buffered_lines, may_write
        self._lines: list[str] = []

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            line = json.dumps(row, allow_nan=False, ensure_ascii=False, separators=(", ", ": "))
            self._lines.append(escape_json(line))
            if len(self._lines) >= self._buffered_lines:
                self.flush()

    def flush(self) -> None:
        """Write the buffered lines. Raises `DiskFailed` and loses the lines."""
        if not self._lines:
            return
        self._may_write()
        waiting = memoryview("".join(f"{line}\n" for line in self._lines).encode())
        self._lines.clear()
        whole = self._file.seek(0, os.SEEK_END)
        try:
            while waiting:
                waiting = waiting[self._file.write(waiting) :]
        except OSError as error:
            with suppress(OSError):  # readers skip an incomplete last line
                os.ftruncate(self._file.fileno(), whole)
            raise DiskFailed(f"{self._path} cannot be written ({error.strerror})") from error

    def close(self) -> None:
        try:
            if not self._file.closed:
                self.flush()
        finally:
            self._file.close()


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the complete lines of `path`; skip a last line that a run is still writing. Raises `DataError` that
    names the damaged line."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if not isinstance(row, dict):
                    raise DataError(f"{path}: line {number} is not a JSON object")
                yield row


def finite(value: float) -> float | None:
    """Return the value, or None (JSON null) for NaN and infinity, which JSON lacks."""
    return value if math.isfinite(value) else None
