"""SQL queries over recorded episodes: DuckDB reads the parts in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
from duckdb import DuckDBPyConnection, DuckDBPyRelation

from rlhf.errors import DataError, UserError
from rlhf.runs.episode_parts import read_episodes, schema_of, sound_parts
from rlhf.runs.episode_table import SCHEMA, table_of
from rlhf.runs.folder import EPISODES, EVALUATIONS
from rlhf.runs.records import RENAMED

PARTS_AS_MAP = "map_from_entries(reward_parts) AS reward_parts"
"""`reward_parts['exact']` is then the part's value."""
PART, ROW = "part", "file_row_number"
PART_OF_FILE = rf"CAST(regexp_extract(filename, 'part-(\d+)', 1) AS INTEGER) AS {PART}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which episodes, in which order, and which of their columns; `where`, `columns` and `order` are SQL."""

    where: str | None = None
    columns: Sequence[str] = ()
    order: str | None = None
    limit: int | None = None


def open_episodes(path: Path, tell: Callable[[str], None]) -> DuckDBPyConnection:
    """Return a connection with a view `episodes`, and `evaluations` for a run folder: it can read nothing else, and
    write nothing. `path` is a run folder, a folder of parts, a part, or a JSONL file.

    Damaged files are reported and skipped. Raises `DataError` if there are no episodes.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist")
    connection = duckdb.connect()
    folders = {name: path / name for name in (EPISODES, EVALUATIONS) if (path / name).is_dir()} or {EPISODES: path}
    files: list[str] = []
    for name, place in folders.items():
        if place.is_file() and place.suffix != ".parquet":
            table = table_of(read_episodes(place))
            connection.from_arrow(table).project(f"* REPLACE ({PARTS_AS_MAP})").create_view(name)
        else:
            found = list(sound_parts(place, tell))
            files += map(str, found)
            read_parts(connection, found).project(", ".join(SCHEMA.names)).create_view(name)
    if EPISODES in folders and path.is_dir() and not files:
        raise DataError(f"{path}: there are no recorded episodes; give a run folder, or its folder or file of episodes")
    connection.execute("SET allowed_paths = ?", [files])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def read_parts(connection: DuckDBPyConnection, parts: Sequence[Path]) -> DuckDBPyRelation:
    """Return the rows of all parts with every column, and their `PART` and `ROW`; columns that an earlier version of
    rlhf did not write are null. Uniting schemas takes milliseconds per file, so it happens only if another version
    resumed the run."""
    empty = connection.from_arrow(SCHEMA.empty_table())
    if not parts:
        return empty.project(f"* REPLACE ({PARTS_AS_MAP}), NULL::INTEGER AS {PART}, NULL::BIGINT AS {ROW}")
    united = not schema_of(parts[0]).equals(schema_of(parts[-1]))
    files = [str(part) for part in parts]
    found = connection.read_parquet(files, union_by_name=united, filename=True, file_row_number=True)
    stored = {name: [own for own in found.columns if RENAMED.get(own, own) == name] for name in empty.columns}
    columns = [
        f"coalesce({', '.join(own)}) AS {name}" if len(own) > 1 else f"{own[0] if own else f'NULL::{kind}'} AS {name}"
        for (name, own), kind in zip(stored.items(), empty.types, strict=True)
    ]
    whole = found.project(", ".join((*columns, PART_OF_FILE, ROW)))
    return whole.project(f"* REPLACE ({PARTS_AS_MAP})")


def ask(connection: DuckDBPyConnection, view: str, question: Question) -> DuckDBPyRelation:
    """Return the answer, which is computed when it is fetched. Raises `UserError` for an expression that is not SQL, or
    names an unknown column."""
    with explaining_sql():
        found = matching(connection.view(view), question)
        found = found.order(question.order) if question.order else found
        found = found.project(", ".join(question.columns)) if question.columns else found
        return found if question.limit is None else found.limit(question.limit)


def matching(rows: DuckDBPyRelation, question: Question) -> DuckDBPyRelation:
    """Return the requested rows."""
    return rows.filter(question.where) if question.where else rows


def first_of(rows: DuckDBPyRelation, question: Question) -> DuckDBPyRelation:
    """Return the first of them, in the requested order."""
    rows = rows.order(question.order) if question.order else rows
    return rows if question.limit is None else rows.limit(question.limit)


@contextmanager
def explaining_sql() -> Iterator[None]:
    """Turn an error of DuckDB in the block into a `UserError` of one line."""
    try:
        yield
    except duckdb.Error as error:
        words = " ".join(str(error).split("\n\nLINE")[0].split())
        raise UserError(f"a part is damaged inside ({words})" if type(error) is duckdb.Error else words) from None
