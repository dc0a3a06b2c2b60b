"""An OTLP collector on loopback, in a thread of the test's process: what it receives, as spans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.servers import running


@dataclass(frozen=True)
class Received:
    """A span as it arrived."""

    service: str
    run: str
    name: str
    trace: str
    span: str
    parent: str
    start: float
    seconds: float
    attributes: dict[str, Any]


@dataclass
class Collector:
    """What was received at its address."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)

    @property
    def traces(self) -> dict[str, list[Received]]:
        """Spans by the name of their trace's root, with its version: "update 1"."""
        by_trace = defaultdict[str, list[Received]](list)
        for span in self.spans:
            by_trace[span.trace].append(span)
        return {named(spans): spans for spans in by_trace.values()}


def named(spans: list[Received]) -> str:
    """The name of a trace, after proof that it is connected: it has one root, and every other parent is in it."""
    ids = {span.span for span in spans}
    assert len(ids) == len(spans)
    assert [(span.service, span.name) for span in spans if span.parent not in ids | {""}] == []
    (root,) = (span for span in spans if not span.parent)
    return " ".join([root.name, *map(str, root.attributes.values())])


@contextmanager
def collecting() -> Iterator[Collector]:
    """Yield a collector, which ends with the block."""
    found = Collector()

    async def traces(request: Request) -> Response:
        found.spans.extend(spans_of(ExportTraceServiceRequest.FromString(await request.body())))
        return Response(ExportTraceServiceResponse().SerializeToString(), media_type="application/x-protobuf")

    with running(Starlette(routes=[Route("/v1/traces", traces, methods=["POST"])])) as found.url:
        yield found


def spans_of(request: ExportTraceServiceRequest) -> Iterator[Received]:
    for group in request.resource_spans:
        about = values_of(group.resource.attributes)
        for span in (span for scope in group.scope_spans for span in scope.spans):
            yield Received(
                service=about["service.name"],
                run=about.get("service.namespace", ""),
                name=span.name,
                trace=span.trace_id.hex(),
                span=span.span_id.hex(),
                parent=span.parent_span_id.hex(),
                start=span.start_time_unix_nano / 1e9,
                seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                attributes=values_of(span.attributes),
            )


def values_of(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
