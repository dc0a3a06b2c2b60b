"""Print a named failure as one line, for every command."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rlhf.errors import RlhfError
from rlhf.untrusted_text import escape_to_line


def print_failure(error: RlhfError) -> int:
    """Print the failure on standard error; return its exit code."""
    print(f"error: {escape_to_line(str(error))}", file=sys.stderr)
    return error.exit_code


def reporting_failures(main: Callable[[], int]) -> Callable[[], int]:
    """Wrap `main` of a separate process, so that a named failure ends it without a traceback."""

    def run() -> int:
        try:
            return main()
        except RlhfError as error:
            return print_failure(error)

    return run
