"""`rlhf report`: a run as one file to keep or to send."""

from __future__ import annotations

from pathlib import Path

from rlhf.apps.reports.report import report_of
from rlhf.apps.reports.report_html import html_report
from rlhf.apps.reports.report_markdown import markdown_report
from rlhf.durable import write_durably
from rlhf.errors import UserError
from rlhf.runs.stored_run import read_run

FORMS = {".html": html_report, ".md": markdown_report}


def run_report(run: Path, output: Path) -> int:
    """Write the report in the form that the file's name asks for. Replaces an existing file."""
    form = FORMS.get(output.suffix)
    if form is None:
        raise UserError(f"a report is {' or '.join(FORMS)}: {output} is neither")
    report = form(report_of(read_run(run)))
    try:
        write_durably(output, report)
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error.strerror})") from None
    print(output)
    return 0
