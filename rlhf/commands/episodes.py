"""`rlhf episodes`: print, filter and export the recorded episodes of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.errors import DataError, UserError
from rlhf.http.untrusted_text import escape_controls, escape_json, escape_to_line

if TYPE_CHECKING:
    from pyarrow import RecordBatch, RecordBatchReader

TABLE_COLUMNS = ("update", "task", "sample", "outcome", "reward", "sampled_tokens AS tokens", "answer", "response")
CELL = 60
"""Longest cell of the table in characters."""
READABLE = 20
"""Number of episodes that are shown unless a limit says otherwise."""
CHUNK = 1024
EXPLAINING = {
    "expected": "answer", "detail": "reward_detail", "failed": "failure_kind", "because": "failure_detail",
}  # fmt: skip
"""Labels of the lines that explain an episode, with their columns."""
UNSURE = 3
"""Number of the least likely tokens that are shown of an episode."""


class Format(StrEnum):
    """The form in which episodes are printed or written."""

    TABLE = "table"
    JSONL = "jsonl"
    PARQUET = "parquet"


def episodes(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or a folder or file of episodes.")],
    where: Annotated[str | None, typer.Option(metavar="SQL", help='Condition: "reward < 0.5 and update > 10".')] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Columns, or SQL expressions.")] = None,
    order: Annotated[str | None, typer.Option(metavar="SQL", help='Order: "reward, update desc".')] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Most episodes [default: 20 to read, else all].")] = None,
    evaluations: Annotated[bool, typer.Option("--evaluations", help="The episodes of evaluations instead.")] = False,
    form: Annotated[Format, typer.Option("--format", help="table, jsonl, or parquet (with --output).")] = Format.TABLE,
    text: Annotated[bool, typer.Option("--text", help="Print every episode in full, as text.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of printing.")] = None,
) -> None:
    """Print, filter and export the recorded episodes of a run. Expressions are DuckDB's SQL; columns are those of the
    page "The run folder", and of --format jsonl. The worst replies of the last update, with what was expected and the
    tokens that were least likely: --where "update = (select max(update) from episodes)" --order reward --limit 3 --text
    """
    from rlhf.runs.episode_query import Question, ask, explaining_sql, open_episodes

    if form is Format.PARQUET and output is None:
        raise UserError("--format parquet writes a file: name it with --output")
    if text and (columns or form is not Format.TABLE):
        raise UserError("--text prints whole episodes: leave out --columns and --format")
    connection = open_episodes(run, lambda words: print(words, file=sys.stderr))
    tabular = form is Format.TABLE and not text
    question = Question(
        where=where,
        columns=(columns,) if columns else TABLE_COLUMNS if tabular else (),
        order=order,
        limit=limit or (READABLE + 1 if form is Format.TABLE else None),
    )
    with explaining_sql(), _new_file(output) as file:
        answer = ask(connection, "evaluations" if evaluations else "episodes", question).to_arrow_reader(CHUNK)
        if file is not None and form is Format.PARQUET:
            _write_parquet(answer, file)
            return
        rows: Iterator[dict[str, Any]] = (
            row for batch in _batches(answer) for row in batch.to_pylist(maps_as_pydicts="lossy")
        )
        if form is Format.TABLE and limit is None:
            rows = _readable(rows)
        if text:
            text_of = token_text(run)
            _write_lines((episode_text(row, text_of) for row in rows), file)
        elif tabular:
            _write_lines(table_lines(list(rows)), file)
        else:
            _write_lines((escape_json(json.dumps(row, ensure_ascii=False)) for row in rows), file)


def table_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return the rows as a table of aligned cells, each on one line and at most `CELL` long."""
    if not rows:
        yield "no episodes"
        return
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def episode_text(row: Mapping[str, Any], text_of: Callable[[int], str]) -> str:
    """Return an episode as text: its place and reward, its messages, and the tokens that were least likely."""
    parts = ", ".join(f"{name} {_cell(value)}" for name, value in (row["reward_parts"] or {}).items())
    head = [
        f"update {row['update']}" if row["update"] else f"version {row['admitted_version']}",
        row["task"],
        f"sample {row['sample']}",
        row["outcome"],
        f"reward {_cell(row['reward'])}" + (f" ({parts})" if parts else ""),
        f"{_cell(row['sampled_tokens'])} tokens",
    ]
    said = row["conversation"] or [*row["prompt"], {"role": "assistant", "content": row["response"] or ""}]
    lines = ["── " + " · ".join(escape_to_line(str(word)) for word in head), *map(_message_text, said)]
    lines += [f"[{name}] {_indented(str(row[key]))}" for name, key in EXPLAINING.items() if row[key]]
    if unsure := _least_likely(row, text_of):
        lines.append(f"[least likely] {unsure}")
    return "\n".join(lines) + "\n"


def _readable(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Iterate over the first rows, and say if there are more."""
    yield from islice(rows, READABLE)
    if next(rows, None) is not None:
        print(f"these are the first {READABLE}; --limit shows more", file=sys.stderr)


def token_text(run: Path) -> Callable[[int], str]:
    """Return what gives a token's text: the run's tokenizer, else the token's number."""
    from rlhf.runs.folder import RunFolder

    file = RunFolder(run).tokenizer / "tokenizer.json"
    if not file.is_file():
        return str
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    return lambda token: tokenizer.decode([token], skip_special_tokens=False)


def _message_text(message: Mapping[str, Any]) -> str:
    calls = "".join(f"\n→ {call['name']}({call['arguments']})" for call in message.get("tool_calls") or ())
    return f"[{escape_to_line(message['role'])}] " + _indented(f"{message['content']}{calls}")


def _indented(text: str) -> str:
    """Return a text whose lines cannot be taken for labels."""
    return escape_controls(text).replace("\n", "\n  ")


def _least_likely(row: Mapping[str, Any], text_of: Callable[[int], str]) -> str:
    logprobs = row["learner_logprobs"] or row["engine_logprobs"] or ()
    places = sorted((value, place) for place, value in enumerate(logprobs) if value is not None)[:UNSURE]
    texts = [json.dumps(text_of(row["token_ids"][place]), ensure_ascii=False) for _, place in places]
    told = [f"{text} at token {place} ({value:.2f})" for text, (value, place) in zip(texts, places, strict=True)]
    return escape_controls(", ".join(told))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) else escape_to_line(str(value))
    return text if len(text) <= CELL else text[: CELL - 1] + "…"


@contextmanager
def _new_file(output: Path | None) -> Iterator[Path | None]:
    """Provide the file to write, which gets the name `output` when it is whole. Raises `UserError`, also if there is
    one."""
    if output is None:
        yield None
        return
    from rlhf.runs.durable import whole

    try:
        if output.exists():
            raise UserError(f"{output} exists: name another file, or delete it")
        with whole(output) as file:
            yield file
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error.strerror or error})") from None


def _write_parquet(answer: RecordBatchReader, file: Path) -> None:
    """Write the answer; whole episodes as a part, which everything reads that reads a run's."""
    import pyarrow.parquet as pq

    from rlhf.runs.episode_table import SCHEMA

    rows = answer.cast(SCHEMA) if answer.schema.names == SCHEMA.names else answer
    with file.open("wb") as opened, pq.ParquetWriter(opened, rows.schema, compression="zstd") as writer:
        for batch in _batches(rows):
            writer.write_batch(batch)


def _batches(answer: RecordBatchReader) -> Iterator[RecordBatch]:
    """Iterate over the answer. Raises `DataError` for a part that is damaged inside."""
    try:
        yield from answer
    except OSError as error:  # what Arrow makes of an error of DuckDB
        raise DataError(str(error).partition("\n")[0]) from None


def _write_lines(lines: Iterable[str], file: Path | None) -> None:
    if file is None:
        for line in lines:
            print(line)
        return
    with file.open("w") as opened:
        opened.writelines(f"{line}\n" for line in lines)
