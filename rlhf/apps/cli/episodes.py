"""`rlhf episodes`: print, filter and export the recorded episodes of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from rlhf.apps.arguments import run_named
from rlhf.errors import UserError

READABLE = 20
"""Number of episodes that are shown unless a limit says otherwise."""
CHUNK = 1024


class Format(StrEnum):
    """The form in which episodes are printed or written."""

    TABLE = "table"
    JSONL = "jsonl"
    PARQUET = "parquet"


def episodes(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="As for `report`, or episodes' folder or file.", parser=run_named)
    ],
    where: Annotated[str | None, typer.Option(metavar="SQL", help='Condition: "reward < 0.5 and update > 10".')] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Columns, or SQL expressions.")] = None,
    order: Annotated[str | None, typer.Option(metavar="SQL", help='Order: "reward, update desc".')] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of episodes [default: 20 for reading, else all].")
    ] = None,
    evaluations: Annotated[bool, typer.Option("--evaluations", help="The episodes of evaluations instead.")] = False,
    form: Annotated[Format, typer.Option("--format", help="table, jsonl, or parquet (with --output).")] = Format.TABLE,
    text: Annotated[bool, typer.Option("--text", help="Print every episode in full, as text.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of printing.")] = None,
) -> None:
    """Print, filter and export the recorded episodes of a run. Expressions are DuckDB's SQL; columns are those of the
    page "The run folder", and of --format jsonl. The worst replies of the last update, with the expected answers and
    the least likely tokens: --where "update = (select max(update) from episodes)" --order reward --limit 3 --text
    """
    from rlhf.apps.reports.episode_text import TABLE_COLUMNS, episode_text, played_by, table_lines, token_text
    from rlhf.runs.episode_export import as_recorded, batches_of, new_file, row_lines, write_parquet
    from rlhf.runs.episode_query import Question, ask, explaining_sql, open_episodes

    if form is Format.PARQUET and output is None:
        raise UserError("--format parquet writes a file: name it with --output")
    if text and (columns or form is not Format.TABLE):
        raise UserError("--text prints whole episodes: leave out --columns and --format")
    connection = open_episodes(run, lambda words: print(words, file=sys.stderr))
    question = Question(
        where=where,
        columns=(columns,) if columns else TABLE_COLUMNS if form is Format.TABLE and not text else (),
        order=order,
        limit=limit or (READABLE + 1 if form is Format.TABLE else None),
    )
    with explaining_sql(), ExitStack() as closing:
        file = closing.enter_context(new_file(output)) if output else sys.stdout.buffer
        answer = ask(connection, "evaluations" if evaluations else "episodes", question).to_arrow_reader(CHUNK)
        if form is Format.PARQUET:
            recorded = as_recorded(answer)
            write_parquet(batches_of(recorded), recorded.schema, file)
            return
        if form is Format.JSONL:
            lines = row_lines(batches_of(as_recorded(answer)))
        else:
            found = (row for batch in batches_of(answer) for row in batch.to_pylist(maps_as_pydicts="lossy"))
            rows = found if limit else _readable(found)
            whole = partial(episode_text, text_of=token_text(run), settings_of=played_by(run))
            lines = map(whole, rows) if text else table_lines(list(rows))
        file.writelines(f"{line}\n".encode() for line in lines)


def _readable(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Iterate over the first rows, and say if there are more."""
    yield from islice(rows, READABLE)
    if next(rows, None) is not None:
        print(f"these are the first {READABLE}; --limit shows more", file=sys.stderr)
