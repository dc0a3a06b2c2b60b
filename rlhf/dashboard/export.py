"""A selection of episodes as a file: JSON lines, or Parquet that everything of ours reads again."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq
from starlette.responses import StreamingResponse

from rlhf.dashboard.episode_index import EpisodeIndex
from rlhf.runs.episode_parts import REPEATING
from rlhf.runs.episode_table import SCHEMA, records_in
from rlhf.runs.records import as_row

PIECE_BYTES = 2**20


class ExportForm(StrEnum):
    """The form of the file."""

    JSONL = "jsonl"
    PARQUET = "parquet"


def exported(index: EpisodeIndex, view: str, where: str | None, form: ExportForm) -> StreamingResponse:
    """Return all episodes that match, in the order in which they were recorded. Raises `UserError` as `find`."""
    batches = index.batches(view, where)
    begun = chain([first] if (first := next(batches, None)) else [], batches)  # a faulty condition is told here
    named = {"Content-Disposition": f'attachment; filename="{view}.{form}"'}
    if form is ExportForm.JSONL:
        return StreamingResponse(record_lines(begun), media_type="application/jsonl", headers=named)
    return StreamingResponse(parquet_bytes(begun), media_type="application/vnd.apache.parquet", headers=named)


def record_lines(batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    """Iterate over the records of the batches, each as a line."""
    for batch in batches:
        yield "".join(json.dumps(as_row(record)) + "\n" for record in records_in(batch))


def parquet_bytes(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Iterate over the bytes of a part with the batches."""
    with tempfile.TemporaryFile() as file:
        with pq.ParquetWriter(file, SCHEMA, compression="zstd", use_dictionary=REPEATING) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.seek(0)
        yield from iter(lambda: file.read(PIECE_BYTES), b"")
