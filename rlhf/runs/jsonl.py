"""Files of one JSON object a line: written in batches, read line by line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

BUFFERED_LINES = 1024
"""Lines kept in memory before they are written: a killed run loses no more than these."""


class JsonlWriter:
    """Appends objects to a file. `flush` (or a full buffer) writes; `close` flushes."""

    def __init__(self, path: Path, buffered_lines: int = BUFFERED_LINES) -> None:
        self._file = path.open("a")
        self._buffered_lines = buffered_lines
        self._lines: list[str] = []

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            self._lines.append(json.dumps(row, allow_nan=False, ensure_ascii=False, separators=(", ", ": ")))
            if len(self._lines) >= self._buffered_lines:
                self.flush()

    def flush(self) -> None:
        self._file.write("".join(f"{line}\n" for line in self._lines))
        self._file.flush()
        self._lines.clear()

    @property
    def written_bytes(self) -> int:
        """The file's length, with all that was written until now in it."""
        self.flush()
        return self._file.tell()

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Every complete line of `path`. The last one of a run that is still going on may be a part: it is left out."""
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def finite(value: float) -> float | None:
    """JSON has no NaN and no infinity: they are null."""
    return value if math.isfinite(value) else None
