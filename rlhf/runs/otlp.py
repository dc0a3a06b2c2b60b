"""Export of spans to a collector by OTLP, through OpenTelemetry's SDK."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from threading import Timer

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_NAMESPACE, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

from rlhf.errors import ConfigError
from rlhf.tracing import Span, SpanIds

CLOSE_SECONDS = 5.0
"""Time to send what waits at the end; a request that has begun ends within its own timeout."""
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
PROTOCOLS = {"http/protobuf": "http", "grpc": "grpc"}
NANOSECONDS = 10**9
SDK_LOG = logging.getLogger("opentelemetry")


class OtlpExport:
    """A `SpanExport`: spans wait in a queue of bounded length for a thread that sends them. The service of a span is
    `rlhf-PROCESS`. The SDK's variables apply (`OTEL_EXPORTER_OTLP_…`, `OTEL_BSP_…`, `OTEL_RESOURCE_ATTRIBUTES`)."""

    def __init__(self, endpoint: str | None, *, process: str, run: str, tell: Callable[[str], None]) -> None:
        """Without an `endpoint`, the environment names it. Raises `ConfigError`."""
        self._exporter = TellingExporter(otlp_exporter(endpoint), tell)
        self._queue, self._process = BatchSpanProcessor(self._exporter), process
        self._resource = cache(lambda name: Resource.create({SERVICE_NAME: f"rlhf-{name}", SERVICE_NAMESPACE: run}))

    def __call__(self, span: Span, ids: SpanIds, parent: SpanIds | None, process: str | None) -> None:
        start = int(span.start * NANOSECONDS)
        self._queue.on_end(
            ReadableSpan(
                span.name,
                context=_context(ids),
                parent=_context(parent) if parent else None,
                resource=self._resource(process or self._process),
                attributes={name: value for name, value in span.attributes.items() if value is not None},
                start_time=start,
                end_time=start + int(span.seconds * NANOSECONDS),
            )
        )

    def close(self) -> None:
        """Send what waits. Do not wait for a collector that is too slow or has failed."""
        giving_up = Timer(0 if self._exporter.failed else CLOSE_SECONDS, self._exporter.shutdown)
        giving_up.start()
        self._queue.shutdown()  # type: ignore[no-untyped-call]
        giving_up.cancel()


class TellingExporter(SpanExporter, logging.Handler):
    """Reports the cause of an exporter's first failure, the last message of its log that says one."""

    def __init__(self, exporter: SpanExporter, tell: Callable[[str], None]) -> None:
        logging.Handler.__init__(self)
        self._exporter, self._tell, self.failed, self._cause = exporter, tell, False, "no answer in time"
        SDK_LOG.addHandler(self)
        SDK_LOG.propagate = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS and not self.failed:
            self.failed = True
            self._tell(self._cause)
        return result

    def shutdown(self) -> None:
        """End an export in progress without another attempt, and refuse later ones."""
        self._exporter.shutdown()

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage()
        if record.args and "exporter" in record.name and "max retries" not in words:
            cause = record.args[0] if words.startswith("Transient") and isinstance(record.args, tuple) else words
            self._cause = " ".join(str(cause).split())


def otlp_exporter(endpoint: str | None) -> SpanExporter:
    """Return the SDK's exporter for the protocol that the environment names: HTTP by default. Raises `ConfigError`."""
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(PROTOCOL) or "http/protobuf"
    if protocol not in PROTOCOLS:
        raise ConfigError(f"{PROTOCOL}={protocol}: give one of {', '.join(PROTOCOLS)}")
    if endpoint is not None and protocol != "grpc":
        endpoint = f"{endpoint.rstrip('/')}/v1/traces"
    module = import_module(f"opentelemetry.exporter.otlp.proto.{PROTOCOLS[protocol]}.trace_exporter")
    exporter: SpanExporter = module.OTLPSpanExporter(endpoint=endpoint)
    return exporter


def _context(ids: SpanIds) -> SpanContext:
    return SpanContext(ids.trace, ids.span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
