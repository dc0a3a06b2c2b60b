"""Recorded episodes as files: JSON lines, or Parquet. Everything of ours reads whole episodes again. A folder is for
other projects' formats, which have a file for each episode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlhf.durable import whole
from rlhf.errors import DataError, UserError
from rlhf.runs.episode_parts import REPEATING
from rlhf.runs.episode_table import SCHEMA, records_in
from rlhf.runs.interchange import name_of
from rlhf.runs.records import EpisodeRecord, as_row
from rlhf.untrusted_text import escape_json


def as_recorded(answer: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return an answer of whole episodes with the schema of the records; any other as it is."""
    return answer.cast(SCHEMA) if answer.schema.names == SCHEMA.names else answer


def batches_of(answer: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Iterate over the answer. Raises `DataError` for a part that is damaged inside."""
    try:
        yield from answer
    except OSError as error:  # what Arrow makes of an error of DuckDB
        raise DataError(str(error).partition("\n")[0]) from None


def row_lines(batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    """Iterate over the rows as JSON."""
    for batch in batches:
        recorded = batch.schema.equals(SCHEMA)
        rows = map(as_row, records_in(batch)) if recorded else batch.to_pylist(maps_as_pydicts="lossy")
        yield from (escape_json(json.dumps(row, ensure_ascii=False)) for row in rows)


def exchanged(
    batches: Iterable[pa.RecordBatch], document_of: Callable[[EpisodeRecord], Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Iterate over the names of the episodes with a turn, and their documents as JSON."""
    for record in (one for batch in batches for one in records_in(batch)):
        if record.turns:
            yield name_of(record), escape_json(json.dumps(document_of(record), ensure_ascii=False))


def write_parquet(batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: IO[bytes]) -> None:
    """Write the rows, encoded as a run's own parts are."""
    with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=REPEATING) as writer:
        for batch in batches:
            writer.write_batch(batch)


@contextmanager
def new_file(output: Path) -> Iterator[IO[bytes]]:
    """Provide a file to write, which gets the name `output` when it is whole. Raises `UserError`, also if there is
    one."""
    with _unused(output), whole(output) as temporary, temporary.open("wb") as file:
        yield file


def write_folder(documents: Iterable[tuple[str, str]], output: Path) -> None:
    """Write each document to a file of its name in the folder `output`, in the same way."""
    with _unused(output), TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as temporary:
        folder = Path(temporary) / output.name
        folder.mkdir()
        for name, document in documents:
            with (folder / f"{name.replace('/', '_')}.json").open("x", encoding="utf-8") as file:
                file.write(f"{document}\n")
        folder.rename(output)


@contextmanager
def _unused(output: Path) -> Iterator[None]:
    try:
        if output.exists():
            raise UserError(f"{output} exists: name another, or delete it")
        yield
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error.strerror or error})") from None
