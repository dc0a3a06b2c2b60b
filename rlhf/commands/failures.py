"""A failure with a name is told in one line, wherever it comes up."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rlhf.errors import RlhfError
from rlhf.http.inert import inert_line


def tell(error: RlhfError) -> int:
    """Print the failure on standard error; returns the exit code it asks for."""
    print(f"error: {inert_line(str(error))}", file=sys.stderr)
    return error.exit_code


def reporting_failures(main: Callable[[], int]) -> Callable[[], int]:
    """`main`, for a process of its own: a failure with a name ends it without a traceback."""

    def run() -> int:
        try:
            return main()
        except RlhfError as error:
            return tell(error)

    return run
