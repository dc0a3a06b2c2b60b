"""A selection of episodes as a file: JSON lines, or Parquet that everything of ours reads again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain

import pyarrow as pa
from starlette.responses import StreamingResponse

from rlhf.apps.dashboard.episode_index import EpisodeIndex
from rlhf.runs.episode_export import row_lines, write_parquet
from rlhf.runs.episode_table import SCHEMA

PIECE_BYTES = 2**20


class ExportForm(StrEnum):
    """The form of the file."""

    JSONL = "jsonl"
    PARQUET = "parquet"


def exported(index: EpisodeIndex, view: str, where: str | None, form: ExportForm) -> StreamingResponse:
    """Return all episodes that match, in the order in which they were recorded. Raises `UserError` as `find`."""
    batches = index.batches(view, where)
    begun = chain([first] if (first := next(batches, None)) else [], batches)  # raises for a faulty condition
    named = {"Content-Disposition": f'attachment; filename="{view}.{form}"'}
    if form is ExportForm.JSONL:
        lines = (f"{line}\n" for line in row_lines(begun))
        return StreamingResponse(lines, media_type="application/jsonl", headers=named)
    return StreamingResponse(parquet_bytes(begun), media_type="application/vnd.apache.parquet", headers=named)


def parquet_bytes(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Iterate over the bytes of a part with the batches."""
    with tempfile.TemporaryFile() as file:
        write_parquet(batches, SCHEMA, file)
        file.seek(0)
        yield from iter(lambda: file.read(PIECE_BYTES), b"")
