"""Where traces go: to the OTLP endpoint of a recipe or the environment. Without one, OpenTelemetry is not imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

from rlhf.tracing import CURRENT, CurrentSpan, Traces

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ENDPOINT)


@contextmanager
def exporting(
    process: str, endpoint: str | None = None, *, run: str = "", tell: Callable[[str], None] = print
) -> Iterator[Traces | None]:
    """Yield the traces of this process, which its tasks inherit; None without an endpoint. Raises `ConfigError`."""
    where = endpoint or next(filter(None, map(os.environ.get, ENDPOINTS)), None)
    if where is None:
        yield None
        return
    from rlhf.runs.otlp import OtlpExport

    export = OtlpExport(
        endpoint, process=process, run=run,
        tell=lambda cause: tell(f"traces do not reach {where}: {cause}; later failures are not told"),
    )  # fmt: skip
    traces = Traces(export)
    CURRENT.set(CurrentSpan(traces))
    if current_thread() is main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # a server sends what waits first
    try:
        yield traces
    finally:
        CURRENT.set(None)  # not by its token: a server's end may run in another task than its start
        traces.end()
        export.close()
