"""`python -m tests.architectures [NAME …]`: measures tiny models of many families and prints the table.

The last line is `RESULT {…}`; the exit code is 1 where a model is wrong. With `--write` the rows that are not wrong
replace theirs in cells.json, from which docs/models.md and what `rlhf check` says are made.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pickle
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tests.architectures.families import MEASURED, Family
from tests.architectures.table import CELLS, Row, Table, for_check, page, record, recorded, versions_of

ROOT = Path(__file__).parents[2]
SECONDS = 600
"""For one family."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.architectures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models to measure, instead of all")
    parser.add_argument("--write", action="store_true", help="write cells.json, docs/models.md, what `rlhf check` says")
    parser.add_argument("--jobs", type=int, default=1, help="models at once")
    options = parser.parse_args()
    chosen = [family for family in MEASURED if not options.names or family.name in options.names]
    if unknown := set(options.names) - {family.name for family in chosen}:
        parser.error(f"no model is called {', '.join(sorted(unknown))}")
    import_once()
    rows = []
    for row in in_children(chosen, options.jobs):
        print(row.line, flush=True)
        rows.append(row)
    counts = Counter(row.verdict for row in rows)
    if options.write:
        write([row for row in rows if row.verdict != "wrong"], datetime.now(UTC).date().isoformat())
    print(
        f"RESULT {json.dumps({verdict: counts[verdict] for verdict in ('right', 'right, alone', 'refused', 'wrong')})}"
    )
    return int(counts["wrong"] > 0)


def write(measured: Sequence[Row], today: str) -> None:
    """These rows and the recorded ones of all other models."""
    others = recorded()
    if others.rows and others.versions != versions_of() and len(measured) < len(MEASURED):
        raise SystemExit(f"the other models were measured with {others.versions}: measure all")
    rows = {row.family.name: row for row in (*others.rows, *(replace(row, date=today) for row in measured))}
    table = Table(versions=versions_of(), rows=[rows[one.name] for one in MEASURED if one.name in rows])
    CELLS.write_text(record(table))
    (ROOT / "docs" / "models.md").write_text(page(table))
    (ROOT / "rlhf" / "models" / "supported_families.json").write_text(for_check(table))


def import_once() -> None:
    """What every child needs is imported before they are forked."""
    os.environ.update({"VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})
    import peft  # noqa: F401

    import tests.architectures.measured  # noqa: F401

    logging.disable(logging.WARNING)


def in_children(families: Sequence[Family], jobs: int) -> Iterator[Row]:
    """A row for each, in their order; so many are measured at once. They are forked by this one thread."""
    waiting, running, done = list(enumerate(families)), {}, {}
    for shown in range(len(families)):
        while shown not in done:
            while waiting and len(running) < jobs:
                index, family = waiting.pop(0)
                running[index] = Child(family)
            for index in [index for index, child in running.items() if child.ended()]:
                done[index] = running.pop(index).row()
            time.sleep(0.05)
        yield done.pop(shown)


class Child:
    """A process that measures one family: an engine leaves traces in its own. What ends the process is told."""

    def __init__(self, family: Family) -> None:
        self.family, self.deadline, self.status = family, time.monotonic() + SECONDS, 0
        self.answer, said = os.pipe()  # which holds more than a row is
        self.pid = os.fork()
        if self.pid == 0:
            os.write(said, pickle.dumps(measured(family)))
            os._exit(0)
        os.close(said)

    def ended(self) -> bool:
        if time.monotonic() > self.deadline:
            os.kill(self.pid, signal.SIGKILL)
        pid, self.status = os.waitpid(self.pid, os.WNOHANG)
        return pid != 0

    def row(self) -> Row:
        with os.fdopen(self.answer, "rb") as answer:
            said = answer.read()
        if self.status or not said:
            return Row(family=self.family, cells={}, broke=f"its process ended with status {self.status}")
        row: Row = pickle.loads(said)
        return row


def measured(family: Family) -> Row:
    from tests.architectures.measured import measure

    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        return Row(family=family, cells=measure(family))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the row's
        return Row(family=family, cells={}, broke=f"{type(error).__name__}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    sys.exit(main())
