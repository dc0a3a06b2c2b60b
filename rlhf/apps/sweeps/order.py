"""The order in which trials report, which decides what schedulers and searchers do: a continued sweep repeats it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

LOOK_SECONDS, TURN_SECONDS = 0.2, 60.0


@dataclass(frozen=True, slots=True)
class ReportOrder:
    """Two lists of reports in a sweep's folder: of this process, and of the longest one before it."""

    folder: Path

    def begin(self) -> None:
        """Begin a new list."""
        if len(now := self._read("now")) > len(self._read("before")):
            (self.folder / "order.before").write_text("".join(now))
        (self.folder / "order.now").unlink(missing_ok=True)

    def add(self, report: str) -> None:
        """Record that a report was used."""
        with (self.folder / "order.now").open("a") as file:
            file.write(f"{report}\n")

    def wait(self, report: str) -> None:
        """Wait for the reports that came before this one, but not for ever: one of them may not come again."""
        line, until = f"{report}\n", time.monotonic() + TURN_SECONDS
        while time.monotonic() < until:
            left = self._read("before")[len(self._read("now")) :]
            if line not in left or left[0] == line:
                return
            time.sleep(LOOK_SECONDS / 10)

    def _read(self, which: str) -> list[str]:
        file = self.folder / f"order.{which}"
        return file.read_text().splitlines(keepends=True) if file.exists() else []
