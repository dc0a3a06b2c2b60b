"""Where traces go: to the OTLP endpoint of a recipe or the environment. Without one, OpenTelemetry is not imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import current_thread, main_thread

from rlhf.tracing import CURRENT, Clock, CurrentSpan

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ENDPOINT)


@contextmanager
def exporting(
    process: str,
    endpoint: str | None = None,
    *,
    clock: Clock | None = None,
    run: str = "",
    tell: Callable[[str], None] = print,
) -> Iterator[Clock]:
    """Let `clock` collect the spans of this task, and of those that it starts. Where there is an endpoint, they are
    exported. Raises `ConfigError`."""
    clock = clock or Clock()
    CURRENT.set(CurrentSpan(clock))
    with ExitStack() as stack:
        stack.callback(CURRENT.set, None)  # not by its token: a server's end may run in another task than its start
        if where := endpoint or next(filter(None, map(os.environ.get, ENDPOINTS)), None):
            from rlhf.runs.otlp import OtlpExport

            clock.export = export = OtlpExport(
                endpoint, process=process, run=run,
                tell=lambda cause: tell(f"traces do not reach {where}: {cause}; later failures are not told"),
            )  # fmt: skip
            stack.callback(export.close)
            stack.callback(clock.end_trace)
            if current_thread() is main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                # a server sends what waits first
                signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        yield clock
