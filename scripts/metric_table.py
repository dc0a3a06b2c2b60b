"""Write the table of metrics of docs/run-folder.md from the catalogue."""

from __future__ import annotations

import re
from pathlib import Path

from rlhf.runs.metric_catalogue import catalogue

PAGE = Path(__file__).resolve().parents[1] / "docs" / "run-folder.md"
TABLE = re.compile(r"(?<=## metrics\.jsonl\n\n)(?:\|.*\n)+")


def table() -> str:
    """Return the table, one row a metric or family."""
    rows = [("metric", "meaning", "unit", "healthy"), ("---",) * 4]
    rows += [(f"`{one.name}`", one.meaning, one.unit, one.healthy) for one in catalogue()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text(), count=1))
