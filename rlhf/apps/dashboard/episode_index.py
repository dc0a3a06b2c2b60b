"""The recorded episodes of a run in DuckDB: their Parquet parts, and the short columns in memory.

Scanning a million episodes takes seconds in the parts, and milliseconds in memory. A query runs in memory unless it
names a column that only the parts have, or the columns are still being read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection, DuckDBPyRelation

from rlhf.errors import UserError
from rlhf.runs.episode_export import as_recorded, batches_of
from rlhf.runs.episode_parts import parts_in, sound_parts
from rlhf.runs.episode_query import PART, ROW, Question, explaining_sql, first_of, matching, read_parts
from rlhf.runs.episode_table import SCHEMA
from rlhf.runs.folder import EPISODES, EVALUATIONS, RunFolder

SHORT = (
    "ordinal", "sample", "task", "evaluation_set", "outcome", "admitted_version", "update", "status", "reward",
    "reward_parts", "advantage", "failure_kind", "engine", "generate_seconds", "environment_seconds", "sampled_tokens",
    "role", "policy", "malformed_calls", "cut_replies", PART, ROW,
)  # fmt: skip
"""The columns in memory: about 250 bytes an episode."""
MOST_IN_MEMORY = 4_000_000
"""Episodes; of a longer run, the parts are scanned."""
FIRST_ANSWER_SECONDS = 1.0
"""The parts are read into memory this much later, because the first page would wait for it."""
EXPORTED_AT_A_TIME = 1024

T = TypeVar("T")
EpisodePlace = tuple[int, int]
"""An episode's part, and its row there."""


@dataclass(frozen=True, slots=True)
class Found:
    """The places of the requested episodes, and the number of all that match."""

    places: Sequence[EpisodePlace]
    total: int


class EpisodeIndex:
    """The recorded episodes of a run, with the parts of its last `refresh`. Every query gets its own cursor, which can
    read only this run, and write nothing."""

    def __init__(self, folder: RunFolder, tell: Callable[[str], None]) -> None:
        self._connection = duckdb.connect()
        self._views = {
            name: _View(self._connection, name, folder.path / name, tell) for name in (EPISODES, EVALUATIONS)
        }
        folders = [str(folder.path / name) for name in self._views]
        self._connection.execute("SET allowed_directories = ?", [folders])
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def refresh(self) -> None:
        """Take up the parts that were written since."""
        for view in self._views.values():
            view.refresh()

    def find(self, view: str, question: Question) -> Found:
        """Return which episodes match, in order. Raises `UserError` for an expression that is no SQL, or names an
        unknown column."""
        return self._answer(view, lambda relation: _found(relation, question))

    def summed(self, view: str, columns: Sequence[str], by: Sequence[str], question: Question) -> list[dict[str, Any]]:
        """Return aggregates of the episodes that match, for each value of `by`; the order and limit are those of the
        rows. Raises `UserError` as `find`."""

        def answer(relation: DuckDBPyRelation) -> list[dict[str, Any]]:
            sums = matching(relation, question).aggregate(", ".join((*by, *columns)), ", ".join(by))
            found: list[dict[str, Any]] = first_of(sums, question).to_arrow_table().to_pylist()
            return found

        return self._answer(view, answer)

    def rows(
        self, view: str, places: Sequence[EpisodePlace], columns: Sequence[str] = SCHEMA.names
    ) -> list[dict[str, Any]]:
        """Return columns of the episodes at `places`, in that order."""
        if not places:
            return []
        parts = [self._view(view).part(number) for number in sorted({part for part, _ in places})]
        wanted = ", ".join(f"({part}, {row})" for part, row in places)
        with explaining_sql():
            relation = read_parts(self._connection.cursor(), parts).filter(f"({PART}, {ROW}) IN (VALUES {wanted})")
            table = relation.project(", ".join((*columns, PART, ROW))).to_arrow_table()
        order = {place: index for index, place in enumerate(places)}
        found = table.to_pylist(maps_as_pydicts="lossy")
        return sorted(found, key=lambda row: order[row.pop(PART), row.pop(ROW)])

    def batches(self, view: str, where: str | None) -> Iterator[pa.RecordBatch]:
        """Iterate over all episodes that match, as they were recorded: with `SCHEMA`, in the order of the parts."""
        self._view(view)
        with explaining_sql():
            found = self._connection.cursor().view(view)
            found = (found.filter(where) if where else found).project(", ".join(SCHEMA.names))
            yield from batches_of(as_recorded(found.to_arrow_reader(EXPORTED_AT_A_TIME)))

    def _answer(self, view: str, answer: Callable[[DuckDBPyRelation], T]) -> T:
        """Answer from memory, or from the parts for a column that only they have."""
        asked, cursor = self._view(view), self._connection.cursor()
        with explaining_sql():
            if asked.in_memory:
                with suppress(duckdb.BinderException):
                    return answer(cursor.table(asked.memory))
            return answer(cursor.view(view))

    def _view(self, name: str) -> _View:
        if name not in self._views:
            raise UserError(f"there is no {name!r:.50}; use {' or '.join(self._views)}")
        return self._views[name]


class _View:
    """One folder of parts: a view with all columns, and a table in memory with the short ones, which a thread fills."""

    def __init__(self, connection: DuckDBPyConnection, name: str, folder: Path, tell: Callable[[str], None]) -> None:
        self.name, self.memory = name, f"{name}_in_memory"
        self._connection, self._folder, self._tell = connection, folder, tell
        self._lock = threading.Lock()
        self._parts: Mapping[Path, int] | None = None
        self._sound: Sequence[Path] = ()
        self._held: Sequence[Path] = ()
        self._filling: threading.Thread | None = None
        self.refresh()

    @property
    def in_memory(self) -> bool:
        return bool(self._held) and len(self._held) == len(self._sound)

    def part(self, number: int) -> Path:
        return self._folder / f"part-{number:06}.parquet"

    def refresh(self) -> None:
        """Take up new parts: a thread does at first, and again if a resumed run wrote others in their place."""
        with self._lock:
            parts = {part: part.stat().st_mtime_ns for part in parts_in(self._folder)}
            if parts != self._parts:
                replaced = self._parts is not None and not self._parts.items() <= parts.items()
                self._parts = parts
                self._sound = list(sound_parts(self._folder, self._tell)) if parts else []
                read_parts(self._connection.cursor(), self._sound).create_view(self.name)
                if replaced and self._filling is not None:
                    self._filling.join()
                    self._held = ()
            if len(self._held) == len(self._sound) or (self._filling is not None and self._filling.is_alive()):
                return
            if self._held:
                self._fill(self._sound)
            else:
                self._filling = threading.Timer(FIRST_ANSWER_SECONDS, self._fill, (self._sound,))
                self._filling.start()

    def _fill(self, parts: Sequence[Path]) -> None:
        """Read the short columns of those `parts` that are not in memory."""
        cursor, new, columns = self._connection.cursor(), f"{self.name}_new", ", ".join(SHORT)
        try:
            found = read_parts(cursor, parts[len(self._held) :])
            found.create_view(new)  # statements leave the interpreter to others while they run; relations do not
            if self._held:
                cursor.execute(f"INSERT INTO {self.memory} SELECT {columns} FROM {new}")
            elif found.count("*").fetchall()[0][0] <= MOST_IN_MEMORY:
                cursor.execute(f"CREATE OR REPLACE TABLE {self.memory} AS SELECT {columns} FROM {new}")
            else:
                return
        except duckdb.Error as error:
            self._tell(f"{self._folder}: its episodes are scanned at each question ({error})")
            return
        self._held = parts


def _found(relation: DuckDBPyRelation, question: Question) -> Found:
    """Answer with one scan, which sorts and counts matching rows. All rows are counted without a scan."""
    count = "count(*) OVER ()" if question.where else f"{relation.count('*').fetchall()[0][0]}"
    counted = matching(relation, question).project(f"*, {count} AS total")
    found = first_of(counted, question).project(f"{PART}, {ROW}, total").fetchall()
    return Found([(part, row) for part, row, _ in found], found[0][2] if found else 0)
