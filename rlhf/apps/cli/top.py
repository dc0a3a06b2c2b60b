"""`rlhf top`: the overview of a run in the terminal, over a folder that another process writes."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TextIO

from rlhf.runs.live_view import LiveView
from rlhf.runs.overview import evaluation_lines, update_lines, watched_rows
from rlhf.runs.stored_run import StoredRun, read_again, read_run
from rlhf.runs.view import PlainView
from rlhf.untrusted_text import escape_to_line

LOOK_SECONDS = 1.0


def run_top(path: Path) -> int:
    """Show the run until it ends, or until q or Ctrl-C: a panel on a terminal, else lines."""
    run, shown, key = read_run(path), 0, ""
    on_terminal = sys.stdout.isatty()
    view = LiveView(run.name, run.updates, sys.stdout, elapsed(run)) if on_terminal else PlainView(sys.stdout)
    with closing(view), keys(sys.stdin) as next_key, suppress(KeyboardInterrupt):
        shown = show_updates(view, run, shown)
        while run.writing and key != "q":
            key = next_key(LOOK_SECONDS)
            run = read_again(run)
            shown = show_updates(view, run, shown)
    if not run.writing:
        print(f"{escape_to_line(run.name)}: {escape_to_line(run.outcome)}")
    return 0


def show_updates(view: LiveView | PlainView, run: StoredRun, shown: int) -> int:
    """Show the updates after the first `shown`, and the watched values. Return the number of updates."""
    for row, line in islice(zip(run.rows, update_lines(run.rows, run.updates), strict=True), shown, None):
        for evaluation in evaluation_lines(row):
            view.evaluation(evaluation)
        view.update(line)
    if isinstance(view, LiveView):
        view.show(watched_rows(run.rows))
        view.phase(f"update {len(run.rows) + 1}" if run.rows else "starting")
    return len(run.rows)


def elapsed(run: StoredRun) -> float:
    """Return the seconds since the run began, or those that it took."""
    if run.summary:
        return float(run.summary.get("wall_seconds") or 0)
    return time.time() - run.folder.recipe.stat().st_mtime


@contextmanager
def keys(stream: TextIO) -> Iterator[Callable[[float], str]]:
    """Provide a function that waits some seconds for a key, and returns it, or nothing. Without a terminal it only
    waits."""
    terminals = [stream] if stream.isatty() else []

    def key(seconds: float) -> str:
        ready, _, _ = select.select(terminals, [], [], seconds)
        return os.read(stream.fileno(), 1).decode("latin-1") if ready else ""

    before = [termios.tcgetattr(one) for one in terminals]
    try:
        for one in terminals:
            tty.setcbreak(one, termios.TCSADRAIN)  # keeps keys pressed already
        yield key
    finally:
        for one, settings in zip(terminals, before, strict=True):
            termios.tcsetattr(one, termios.TCSADRAIN, settings)
