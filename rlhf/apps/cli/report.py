"""`rlhf report`: a run as one file to keep or to send."""

from __future__ import annotations

from pathlib import Path

from rlhf.apps.reports.report import html_report
from rlhf.durable import write_durably
from rlhf.errors import UserError
from rlhf.runs.stored_run import read_run


def run_report(run: Path, output: Path) -> int:
    """Write the report. Replaces an existing file."""
    if output.suffix != ".html":
        raise UserError(f"a report is an HTML file: {output} does not end in .html")
    try:
        write_durably(output, html_report(read_run(run)))
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error.strerror})") from None
    print(output)
    return 0
