"""Rows of local files: JSON lines, JSON, CSV and Parquet. A value is read exactly as the file has it."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rlhf.data.columns import Row, exact_json
from rlhf.errors import DataError

Placed = tuple[str, Row]
"""A row, and its file and number for errors."""


def rows_in_file(file: Path) -> Iterator[Placed]:
    """Iterate over the rows of a file. Raises `DataError`, which names the row or the line."""
    try:
        yield from READERS[ending_of(file)](file)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: cannot be read: {error}") from error


def ending_of(path: Path) -> str:
    """Return the ending that says how a file is read; `.gz` may follow it."""
    return Path(path.name.removesuffix(".gz")).suffix


def json_lines(file: Path) -> Iterator[Placed]:
    """Read objects one a line. The number of a row is that of its line, blank lines included."""
    for number, line in _lines(file):
        if line.strip():
            where = f"{file}, row {number}"
            try:
                row = exact_json(line.rstrip())
            except (ValueError, RecursionError) as error:
                said = f"{error.msg} (character {error.pos + 1})" if isinstance(error, json.JSONDecodeError) else error
                raise DataError(f"{where} is not JSON: {said}") from None
            yield where, _object(row, where)


def _object(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{where} is not a JSON object; every row must be one")
    return row


def _json(file: Path) -> Iterator[Placed]:
    """Read a list of objects, or objects one a line."""
    try:
        whole = exact_json("".join(line for _, line in _lines(file)))
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise DataError(f"{file}, line {error.lineno} is not JSON: {error.msg}") from None
        yield from json_lines(file)
        return
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is not JSON: {error}") from None
    for number, row in enumerate(whole if isinstance(whole, list) else [whole], 1):
        yield (where := f"{file}, row {number}"), _object(row, where)


def _csv(file: Path) -> Iterator[Placed]:
    """Read every cell as the text that is written there; an empty cell is a missing value. The header is not a row."""
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader((line for _, line in _lines(file)), strict=True)
    try:
        header = next(reader, [])
        if repeated := {name for name in header if header.count(name) > 1}:
            raise DataError(f"{file}: the header names {', '.join(map(repr, sorted(repeated)))} twice")
        line, number = reader.line_num + 1, 0
        for cells in reader:
            number += bool(cells)
            where, line = f"{file}, row {number} (line {line})", reader.line_num + 1
            if len(cells) > len(header):
                raise DataError(f"{where} has {len(cells)} cells, but the header has {len(header)}")
            if cells:
                row = dict.fromkeys(header) | {name: cell or None for name, cell in zip(header, cells, strict=False)}
                yield where, row
    except csv.Error as error:
        raise DataError(f"{file}, line {reader.line_num} is not CSV: {error}") from None


def _parquet(file: Path) -> Iterator[Placed]:
    import pyarrow
    from pyarrow import parquet

    with _opened(file) as content:
        try:
            batches = (_as_written(batch, pyarrow).to_pylist() for batch in parquet.ParquetFile(content).iter_batches())
            for number, row in enumerate((row for batch in batches for row in batch), 1):
                yield f"{file}, row {number}", {name: _without_gaps(value) for name, value in row.items()}
        except pyarrow.ArrowException as error:
            raise DataError(f"{file}: cannot be read as Parquet: {error}") from error


def _as_written(batch: Any, pyarrow: Any) -> Any:
    """Return the batch with 0.1 where a float of 32 bits is 0.10000000149011612 in 64."""
    for place, field in enumerate(batch.schema):
        if field.type == pyarrow.float32():
            text = batch.column(place).cast(pyarrow.string())
            batch = batch.set_column(place, field.name, text.cast(pyarrow.float64()))
    return batch


def _without_gaps(value: Any) -> Any:
    """Leave out the keys that Parquet adds with None, because all objects of a list have the same keys in it."""
    if not isinstance(value, list) or not any(isinstance(one, Mapping) for one in value):
        return value
    return [_filled(one) if isinstance(one, Mapping) else one for one in value]


def _filled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(inner) for key, inner in value.items() if inner is not None}
    return [_filled(inner) for inner in value] if isinstance(value, list) else value


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Iterate over the lines of a text file with their numbers."""
    with _opened(file) as lines:
        for number, line in enumerate(lines, 1):
            if number == 1 and (line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in line):
                raise DataError(f"{file} is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8")
            try:
                yield number, (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{file}, line {number}: byte 0x{line[error.start]:02x} is not UTF-8; convert it, for "
                    "instance from Latin-1: iconv -f LATIN1 -t UTF-8"
                ) from None


def _opened(file: Path) -> IO[bytes]:
    return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")  # type: ignore[return-value]


READERS: Mapping[str, Callable[[Path], Iterator[Placed]]] = {
    ".json": _json, ".jsonl": json_lines, ".csv": _csv, ".parquet": _parquet,
}  # fmt: skip
"""The reader for each file ending."""
