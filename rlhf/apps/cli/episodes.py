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
    ATIF = "atif"
    OPENENV = "openenv"


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
    form: Annotated[Format, typer.Option("--format", help="table, jsonl, parquet, atif, openenv.")] = Format.TABLE,
    text: Annotated[bool, typer.Option("--text", help="Print every episode in full, as text.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write (atif: folder).")] = None,
) -> None:
    """Print, filter and export the recorded episodes of a run. Expressions are DuckDB's SQL; columns are those of the
    page "The run folder", and of --format jsonl. The worst replies of the last update, with the expected answers and
    the least likely tokens: --where "update = (select max(update) from episodes)" --order reward --limit 3 --text
    """
    from rlhf.apps.reports.episode_text import TABLE_COLUMNS, episode_text, played_by, table_lines, token_text
    from rlhf.runs import episode_export as export
    from rlhf.runs.episode_query import Question, ask, explaining_sql, open_episodes
    from rlhf.runs.interchange import training_trace, trajectory

    if form is Format.PARQUET and output is None:
        raise UserError("--format parquet writes a file: name it with --output")
    if form in (Format.ATIF, Format.OPENENV) and columns:
        raise UserError(f"--format {form} exports whole episodes: leave out --columns")
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
        single = None if form is Format.ATIF else output
        file = closing.enter_context(export.new_file(single)) if single else sys.stdout.buffer
        answer = ask(connection, "evaluations" if evaluations else "episodes", question).to_arrow_reader(CHUNK)
        if form is Format.PARQUET:
            recorded = export.as_recorded(answer)
            export.write_parquet(export.batches_of(recorded), recorded.schema, file)
            return
        if form in (Format.ATIF, Format.OPENENV):
            document_of = training_trace if form is Format.OPENENV else partial(trajectory, text_of=token_text(run))
            documents = export.exchanged(export.batches_of(export.as_recorded(answer)), document_of)
            if output and form is Format.ATIF:
                export.write_folder(documents, output)
                return
            lines: Iterator[str] = (document for _, document in documents)
        elif form is Format.JSONL:
            lines = export.row_lines(export.batches_of(export.as_recorded(answer)))
        else:
            found = (row for batch in export.batches_of(answer) for row in batch.to_pylist(maps_as_pydicts="lossy"))
            rows = found if limit else _readable(found)
            whole = partial(episode_text, text_of=token_text(run), settings_of=played_by(run))
            lines = map(whole, rows) if text else table_lines(list(rows))
        file.writelines(f"{line}\n".encode() for line in lines)


def _readable(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Iterate over the first rows, and say if there are more."""
    yield from islice(rows, READABLE)
    if next(rows, None) is not None:
        print(f"these are the first {READABLE}; --limit shows more", file=sys.stderr)
