"""Episode records as Arrow tables, the content of Parquet files, and back.

A null list is a column that does not apply. A null in a per-token list is a token that the policy did not sample, where
a record has NaN, or version -1. Text is valid UTF-8: half a surrogate pair is written as its escape `\\udXXX`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rlhf.errors import DataError
from rlhf.runs.records import PER_TOKEN, RENAMED, UNKNOWN_VERSION, EpisodeOutcome, EpisodeRecord

VERSION_KEY, VERSION = b"rlhf.episodes", 2
"""Metadata key of a table, and the version of its schema: newer ones are refused."""
CHUNK = 64
"""Records converted at a time: Arrow holds the interpreter lock while it reads Python objects."""

_MESSAGES = pa.list_(
    pa.struct(
        {
            "role": pa.string(),
            "content": pa.string(),
            "tool_calls": pa.list_(pa.struct({"id": pa.string(), "name": pa.string(), "arguments": pa.string()})),
            "tool_call_id": pa.string(),
            "images": pa.list_(pa.string()),
        }
    )
)
_TURNS = pa.list_(
    pa.struct(
        {
            "segment": pa.int32(), "start": pa.int32(), "stop": pa.int32(), "reward": pa.float64(),
            "terminated": pa.bool_(), "truncated": pa.bool_(), "message": pa.int32(),
        }
    )
)  # fmt: skip
_IMAGES = pa.list_(
    pa.struct(
        {"segment": pa.int32(), "start": pa.int32(), "stop": pa.int32(), "sha256": pa.string(), "file": pa.string()}
    )
)
SCHEMA = pa.schema(
    {
        "ordinal": pa.int64(),
        "sample": pa.int32(),
        "task": pa.string(),
        "group_name": pa.string(),
        "evaluation_set": pa.string(),
        "outcome": pa.string(),
        "admitted_version": pa.int32(),
        "update": pa.int32(),
        "prompt": _MESSAGES,
        "answer": pa.string(),
        "response": pa.string(),
        "status": pa.string(),
        "reward": pa.float64(),
        "reward_parts": pa.list_(pa.struct({"name": pa.string(), "value": pa.float64()})),
        "reward_detail": pa.string(),
        "reward_per_turn": pa.bool_(),
        "turn_weight": pa.float64(),
        "advantage": pa.float64(),
        "advantages": pa.list_(pa.float32()),
        "failure_kind": pa.string(),
        "failure_detail": pa.string(),
        "engine": pa.string(),
        "generate_seconds": pa.float64(),
        "environment_seconds": pa.float64(),
        "sampled_tokens": pa.int32(),
        "conversation": _MESSAGES,
        "role": pa.string(),
        "policy": pa.string(),
        "malformed_calls": pa.int32(),
        "cut_replies": pa.int32(),
        "constrained_replies": pa.int32(),
        "segment_lengths": pa.list_(pa.int32()),
        "segment_threads": pa.list_(pa.string()),
        "token_ids": pa.list_(pa.int32()),
        "kinds": pa.list_(pa.int8()),
        "behaviour_logprobs": pa.list_(pa.float32()),
        "proximal_logprobs": pa.list_(pa.float32()),
        "entropies": pa.list_(pa.float32()),
        "versions": pa.list_(pa.int32()),
        "turns": _TURNS,
        "images": _IMAGES,
    },
    metadata={VERSION_KEY: str(VERSION).encode()},
)


def table_of(records: Iterable[EpisodeRecord]) -> pa.Table:
    """Return the records as a table with `SCHEMA`."""
    rest = iter(records)
    return pa.concat_tables([SCHEMA.empty_table(), *iter(lambda: _chunk(list(islice(rest, CHUNK))), None)])


def records_in(table: pa.Table | pa.RecordBatch) -> Iterator[EpisodeRecord]:
    """Iterate over the records of a table; columns that it lacks are null. Raises `DataError` for a newer schema."""
    check_version(table.schema)
    stored = {RENAMED.get(name, name): table.column(name) for name in table.schema.names}
    columns = {name: _values(name, column) for name, column in stored.items() if name in SCHEMA.names}
    for values in zip(*columns.values(), strict=True):
        yield EpisodeRecord(**dict(zip(columns, values, strict=True)))


def check_version(schema: pa.Schema) -> None:
    """Raise `DataError` unless this version of rlhf can read tables with `schema`."""
    version = (schema.metadata or {}).get(VERSION_KEY)
    if version is None:
        raise DataError("it has no rlhf episodes")
    if int(version) > VERSION:
        raise DataError(f"its schema is {int(version)}, but this rlhf reads up to {VERSION}; install a newer one")


def _chunk(records: Sequence[EpisodeRecord]) -> pa.Table | None:
    if not records:
        return None
    return pa.Table.from_arrays([_array(field, records) for field in SCHEMA], schema=SCHEMA)


def _array(field: pa.Field, records: Sequence[EpisodeRecord]) -> pa.Array:
    values = [getattr(record, field.name) for record in records]
    if field.name in PER_TOKEN:
        return _token_lists(values, field.type)
    if stored := _STORED.get(field.name):
        values = [None if value is None else stored(value) for value in values]
    return pa.array(values, field.type)


def _token_lists(arrays: Sequence[NDArray[Any] | None], kind: pa.ListType) -> pa.ListArray:
    """Return per-token arrays as one list array, without a Python object for each token."""
    lengths = [0 if array is None else len(array) for array in arrays]
    tokens = np.concatenate([np.zeros(0, kind.value_type.to_pandas_dtype()), *(a for a in arrays if a is not None)])
    unknown = ~np.isfinite(tokens) if tokens.dtype.kind == "f" else tokens == UNKNOWN_VERSION
    return pa.ListArray.from_arrays(
        pa.array(np.cumsum([0, *lengths]), pa.int32()),
        pa.array(tokens, kind.value_type, mask=unknown),
        type=kind,
        mask=pa.array([array is None for array in arrays]),
    )


def _values(name: str, column: pa.Array | pa.ChunkedArray) -> Sequence[Any]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if name in PER_TOKEN:
        return _token_arrays(array, PER_TOKEN[name])
    read, values = _READ.get(name), array.to_pylist()
    return [None if value is None else read(value) for value in values] if read else values


def _token_arrays(lists: pa.ListArray, dtype: type[np.generic]) -> list[NDArray[Any] | None]:
    unknown = np.nan if np.issubdtype(dtype, np.floating) else UNKNOWN_VERSION
    tokens = lists.values.fill_null(unknown).to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    offsets = lists.offsets.to_numpy()
    return [
        tokens[start:stop] if known else None
        for start, stop, known in zip(offsets[:-1], offsets[1:], lists.is_valid().to_pylist(), strict=True)
    ]


def _text(text: str) -> str:
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _stored_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    stored = []
    for one in messages:
        calls = [{**call, "arguments": json.dumps(call["arguments"])} for call in one.get("tool_calls") or ()]
        named = [{name: _text(value) for name, value in call.items()} for call in calls]
        texts = {name: _text(value) for name, value in one.items() if isinstance(value, str)}
        stored.append({**texts, "tool_calls": named or None, "images": one.get("images")})
    return stored


def _read_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    read = []
    for one in messages:
        known = [{name: value for name, value in call.items() if value is not None} for call in one["tool_calls"] or ()]
        calls = [{**call, "arguments": json.loads(call["arguments"])} for call in known]
        read.append({name: value for name, value in {**one, "tool_calls": calls or None}.items() if value is not None})
    return read


def _stored_parts(parts: Mapping[str, float]) -> list[dict[str, Any]]:
    return [{"name": _text(name), "value": value} for name, value in parts.items()]


def _read_parts(parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {part["name"]: part["value"] for part in parts}


_TEXTS = {field.name: _text for field in SCHEMA if pa.types.is_string(field.type)}
_STORED: dict[str, Callable[[Any], Any]] = {
    **_TEXTS, "prompt": _stored_messages, "conversation": _stored_messages, "reward_parts": _stored_parts,
}  # fmt: skip
_READ: dict[str, Callable[[Any], Any]] = {
    "outcome": EpisodeOutcome, "prompt": _read_messages, "conversation": _read_messages, "reward_parts": _read_parts,
}  # fmt: skip
